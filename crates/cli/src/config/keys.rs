//! Every key of `oncebox.toml`, with its environment variable, flag, default
//! and meaning. The file, the environment, `--print-config` and the page
//! `docs/reference/config.md` all go by this table.

/// What a value looks like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// Any text.
    Text,
    /// A text that may carry a password and is never shown whole.
    Url,
    /// A whole number within bounds.
    Count(u64, u64),
    /// A length of time, such as `500ms`.
    Span,
    /// One of these words.
    Choice(&'static [&'static str]),
    /// A list of texts.
    List,
    /// `true` or `false`.
    Flag,
}

/// One thing that can be set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Key {
    pub(crate) name: &'static str,
    pub(crate) shape: Shape,
    /// Empty if it has none.
    pub(crate) default: &'static str,
    /// Empty if no variable sets it.
    pub(crate) env: &'static str,
    /// Empty if no flag sets it.
    pub(crate) flag: &'static str,
    /// The only kind of destination it is for; empty if it is for all.
    pub(crate) only: &'static str,
    pub(crate) help: &'static str,
}

impl Key {
    const fn new(name: &'static str, shape: Shape, help: &'static str) -> Self {
        Self { name, shape, default: "", env: "", flag: "", only: "", help }
    }

    const fn or(mut self, default: &'static str) -> Self {
        self.default = default;
        self
    }

    const fn env(mut self, env: &'static str) -> Self {
        self.env = env;
        self
    }

    const fn only(mut self, kind: &'static str) -> Self {
        self.only = kind;
        self
    }

    const fn flag(mut self, flag: &'static str) -> Self {
        self.flag = flag;
        self
    }
}

/// A table of the file.
#[derive(Debug)]
pub(crate) struct Section {
    /// As it is written in the file.
    pub(crate) title: &'static str,
    pub(crate) keys: &'static [Key],
}

const TO: &[&str] = &["rabbitmq", "nats", "http", "stdout"];
pub(crate) const GRADES: &[&str] = &["A", "B", "C", "D", "F"];

pub(crate) static LOG: Section = Section {
    title: "[log]",
    keys: &[
        Key::new("filter", Shape::Text, "What to log: a level, or `target=level,…`.")
            .or("warn")
            .env("ONCEBOX_LOG")
            .flag("--log"),
        Key::new(
            "format",
            Shape::Choice(&["text", "json"]),
            "Lines for people or JSON objects. `-o json` means `json`.",
        )
        .or("text")
        .env("ONCEBOX_LOG_FORMAT"),
    ],
};

pub(crate) static HEALTH: Section = Section {
    title: "[health]",
    keys: &[Key::new(
        "listen",
        Shape::Text,
        "Address and port, such as `127.0.0.1:8080`. Reasons are told only to this machine.",
    )
    .env("ONCEBOX_HEALTH")
    .flag("--health")],
};

pub(crate) static STORE: Section = Section {
    title: "[[store]]",
    keys: &[
        Key::new("name", Shape::Text, "What sinks call it.").or("default"),
        Key::new("url", Shape::Url, "A PostgreSQL URL, or the path of a SQLite file. The variable `DATABASE_URL` is asked last.")
            .env("ONCEBOX_DB")
            .flag("--db"),
        Key::new("url_env", Shape::Text, "The environment variable that holds the URL."),
        Key::new("url_file", Shape::Text, "The file that holds the URL; read again on SIGHUP.").env("ONCEBOX_DB_FILE"),
        Key::new("schema", Shape::Text, "The schema (PostgreSQL) or table prefix (SQLite).")
            .or("oncebox")
            .env("ONCEBOX_SCHEMA")
            .flag("--schema"),
        Key::new("keep", Shape::Span, "How long settled messages are kept for replay, at least an hour; `off` leaves them to another janitor.")
            .or("7d")
            .env("ONCEBOX_KEEP")
            .flag("--keep"),
    ],
};

pub(crate) static SINK: Section = Section {
    title: "[[sink]]",
    keys: &[
        Key::new("name", Shape::Text, "The name under which progress is kept; relays with the same name share the work. Default: the value of `to`.")
            .env("ONCEBOX_SINK")
            .flag("--sink"),
        Key::new("store", Shape::Text, "The store it reads. Default: the only one."),
        Key::new("to", Shape::Choice(TO), "What kind of destination it is. A flag or variable takes a URL, which says both.")
            .env("ONCEBOX_TO")
            .flag("--to"),
        Key::new("url", Shape::Url, "The broker's URL; for `http` the address of messages that no route sends elsewhere.")
            .env("ONCEBOX_URL"),
        Key::new("url_env", Shape::Text, "The environment variable that holds the URL."),
        Key::new("url_file", Shape::Text, "The file that holds the URL; read again on SIGHUP.").env("ONCEBOX_URL_FILE"),
        Key::new("topology", Shape::Choice(&["declare", "check"]), "Whether exchanges and streams are made, or only looked at.")
            .or("declare")
            .env("ONCEBOX_TOPOLOGY")
            .flag("--topology"),
        Key::new("mode", Shape::Choice(&["binary", "structured"]), "The CloudEvents mode.")
            .or("binary")
            .env("ONCEBOX_MODE")
            .flag("--mode"),
        Key::new("require", Shape::Choice(GRADES), "The worst grade of preflight with which a destination is used.")
            .or("C")
            .env("ONCEBOX_REQUIRE")
            .flag("--require"),
        Key::new("horizon", Shape::Span, "How long the destination must keep a message; preflight compares its limits with it.")
            .or("24h")
            .env("ONCEBOX_HORIZON"),
        Key::new("destinations", Shape::List, "Destinations to inspect at start, beside those that routes name. Others are inspected when a message first goes there.")
            .env("ONCEBOX_DESTINATIONS")
        .flag("--destinations"),
        Key::new("batch", Shape::Count(1, 10_000), "Messages read, published and settled together.")
            .or("500")
            .env("ONCEBOX_BATCH")
            .flag("--batch"),
        Key::new("window", Shape::Count(1, 10_000), "Messages sent ahead of their confirms.")
            .or("1000")
            .env("ONCEBOX_WINDOW"),
        Key::new("poll", Shape::Span, "The longest wait between two looks at an idle outbox.")
            .or("500ms")
            .env("ONCEBOX_POLL")
            .flag("--poll"),
        Key::new("lease", Shape::Span, "How long shards stay claimed without renewal.").or("30s").env("ONCEBOX_LEASE"),
        Key::new("publish_timeout", Shape::Span, "How long the destination may take to confirm a batch; at most half of the lease.")
            .or("10s")
            .env("ONCEBOX_PUBLISH_TIMEOUT"),
        Key::new("max_attempts", Shape::Count(1, 1_000_000), "Attempts before a refused message is a dead letter.")
            .or("10")
            .env("ONCEBOX_MAX_ATTEMPTS"),
        Key::new("on_dead", Shape::Choice(&["block_key", "skip_key"]), "Whether later messages of a dead letter's key wait for a person or go on.")
            .or("block_key")
            .env("ONCEBOX_ON_DEAD"),
        Key::new("workers", Shape::Count(1, 8), "Relays in this process that share the sink's shards.")
            .or("1")
            .env("ONCEBOX_WORKERS")
            .flag("--workers"),
        Key::new("ca_file", Shape::Text, "A PEM file of certificates to trust, for a broker with a certificate authority of its own.")
            .env("ONCEBOX_CA_FILE"),
        Key::new("exchange", Shape::Text, "One exchange for everything; destinations are then routing keys.")
            .env("ONCEBOX_EXCHANGE")
            .only("rabbitmq"),
        Key::new("groups", Shape::List, "The consumer groups whose queues preflight looks at.")
            .env("ONCEBOX_GROUPS")
            .only("rabbitmq"),
        Key::new("management_url", Shape::Url, "The management API, `http://user:password@host:15672`: preflight sees bindings and policies only there.")
            .env("ONCEBOX_MANAGEMENT_URL")
            .only("rabbitmq"),
        Key::new("management_url_env", Shape::Text, "The environment variable that holds it.").only("rabbitmq"),
        Key::new("management_url_file", Shape::Text, "The file that holds it.")
            .env("ONCEBOX_MANAGEMENT_URL_FILE")
            .only("rabbitmq"),
        Key::new("credentials_file", Shape::Text, "A `.creds` file to log in with; read again on SIGHUP.")
            .env("ONCEBOX_CREDENTIALS_FILE")
            .only("nats"),
        Key::new("prefix", Shape::Text, "Tokens put before every destination.").env("ONCEBOX_PREFIX").only("nats"),
        Key::new("replicas", Shape::Count(1, 5), "Replicas of a stream that is declared.")
            .env("ONCEBOX_REPLICAS")
            .only("nats"),
        Key::new("authorization_env", Shape::Text, "The environment variable that holds the `Authorization` header for `url`.")
            .env("ONCEBOX_AUTHORIZATION_ENV")
            .only("http"),
        Key::new("authorization_file", Shape::Text, "The file that holds it; read again on SIGHUP.")
            .env("ONCEBOX_AUTHORIZATION_FILE")
            .only("http"),
        Key::new("webhook_secret_env", Shape::Text, "The environment variable that holds the secret which signs requests as Standard Webhooks does.")
            .env("ONCEBOX_WEBHOOK_SECRET_ENV")
            .only("http"),
        Key::new("webhook_secret_file", Shape::Text, "The file that holds it; read again on SIGHUP.")
            .env("ONCEBOX_WEBHOOK_SECRET_FILE")
            .only("http"),
        Key::new("plain_http", Shape::Flag, "Whether messages may go to other machines without TLS.")
            .env("ONCEBOX_PLAIN_HTTP")
            .only("http"),
    ],
};

pub(crate) static ROUTE: Section = Section {
    title: "[[sink.route]]",
    keys: &[
        Key::new("message", Shape::Text, "A message name, `order.*`, or `*`."),
        Key::new(
            "to",
            Shape::Url,
            "The destination; `{type}`, `{destination}` and `{tenant}` are filled in.",
        ),
        Key::new("skip", Shape::Flag, "Such messages are not for this sink.").or("false"),
        Key::new(
            "max_bytes",
            Shape::Count(1, 64 << 20),
            "Larger payloads become dead letters instead of being sent.",
        ),
    ],
};

pub(crate) static SIGNING: Section = Section {
    title: "[sink.signing]",
    keys: &[
        Key::new("key_id", Shape::Text, "The name of the key, which travels with the signature.")
            .env("ONCEBOX_SIGNING_KEY_ID"),
        Key::new("secret_env", Shape::Text, "The environment variable that holds the secret.")
            .env("ONCEBOX_SIGNING_SECRET_ENV"),
        Key::new("secret_file", Shape::Text, "The file that holds the secret; read again on SIGHUP.")
            .env("ONCEBOX_SIGNING_SECRET_FILE"),
    ],
};

impl Section {
    pub(crate) fn key(&self, name: &str) -> Option<&'static Key> {
        self.keys.iter().find(|key| key.name == name)
    }
}

/// The known word that `word` was probably meant to be.
pub(crate) fn nearest<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let close =
        |candidate: &&str| distance(word, candidate) <= (candidate.len().max(word.len()) / 3).max(1) + 1;
    known.into_iter().filter(close).min_by_key(|candidate| distance(word, candidate))
}

/// Levenshtein's distance, one row at a time.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = i;
        let mut left = i + 1;
        let mut next = vec![left];
        for (y, above) in b.iter().zip(row.iter().skip(1)) {
            left = (diagonal + usize::from(x != *y)).min(above + 1).min(left + 1);
            diagonal = *above;
            next.push(left);
        }
        row = next;
    }
    row.last().copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distance_counts_edits() {
        for (a, b, edits) in [("", "", 0), ("a", "", 1), ("kitten", "sitting", 3), ("pol", "poll", 1)] {
            assert_eq!(distance(a, b), edits, "{a} {b}");
        }
    }

    #[test]
    fn a_near_miss_finds_its_key_and_nonsense_finds_none() {
        let known = || SINK.keys.iter().map(|key| key.name);

        assert_eq!(nearest("pol", known()), Some("poll"));
        assert_eq!(nearest("max_attempt", known()), Some("max_attempts"));
        assert_eq!(nearest("zzzzzzzzzzz", known()), None);
    }

    /// All of them, in the order of the page.
    static SECTIONS: [&Section; 6] = [&LOG, &HEALTH, &STORE, &SINK, &ROUTE, &SIGNING];

    fn code(text: &str) -> String {
        if text.is_empty() { "-".to_owned() } else { format!("`{text}`") }
    }

    fn describe(shape: Shape) -> String {
        match shape {
            Shape::Text => "text".into(),
            Shape::Url => "URL".into(),
            Shape::Count(least, most) => format!("{least} to {most}"),
            Shape::Span => "time".into(),
            Shape::Choice(words) => words.iter().map(|word| code(word)).collect::<Vec<_>>().join(", "),
            Shape::List => "list of texts".into(),
            Shape::Flag => "`true`, `false`".into(),
        }
    }

    fn table(section: &Section) -> String {
        let mut text = String::from(
            "| key | value | default | variable | flag | meaning |\n|---|---|---|---|---|---|\n",
        );
        for key in section.keys {
            let cells =
                [code(key.name), describe(key.shape), code(key.default), code(key.env), code(key.flag)];
            let only = if key.only.is_empty() { String::new() } else { format!(" Only for `{}`.", key.only) };
            text.push_str(&format!("| {} | {}{only} |\n", cells.join(" | "), key.help));
        }
        text
    }

    #[test]
    fn the_page_shows_every_key_as_it_is() {
        let page = include_str!("../../../../docs/reference/config.md");

        for section in SECTIONS {
            let table = format!("## {}\n", section.title);
            assert!(page.contains(&table), "docs/reference/config.md lacks {table}");
            assert!(
                page.contains(&self::table(section)),
                "docs/reference/config.md lacks\n{}",
                self::table(section)
            );
        }
    }

    #[test]
    fn no_variable_sets_two_keys() {
        let mut seen = std::collections::BTreeSet::new();

        for key in SECTIONS.iter().flat_map(|section| section.keys).filter(|key| !key.env.is_empty()) {
            assert!(seen.insert(key.env), "{}", key.env);
        }
    }
}
