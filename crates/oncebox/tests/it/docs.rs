//! What the documentation says is what the code does: examples run, statements
//! are accepted, links lead somewhere, and no option or metric is left out.

use std::fmt::Debug;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use oncebox::inbox::InboxOptions;
use oncebox::memory::MemoryStore;
use oncebox::relay::RelayOptions;
use oncebox::signature::HEADER;
use oncebox::stores::{postgres, sqlite};
use oncebox::verdict::RetryPolicy;
use oncebox::{
    Backoff, Envelope, Failure, HandlerOptions, Identifier, Janitor, Keyring, Kind, Limits, Mailbox,
    Publisher, Relay, Timestamp, WorkOptions,
};
use oncebox_conformance::fixture::service_url;
use sqlx::AssertSqlSafe;

use crate::tidy::{files, root};

const EXAMPLES: [&str; 6] = ["first_message", "transactions", "consumers", "durable", "testing", "gate"];

/// A fenced block, with the comment on the line before it.
struct Block {
    page: String,
    mark: String,
    language: String,
    text: String,
}

fn blocks(folder: &str) -> Vec<Block> {
    let mut found = Vec::new();
    for (page, text) in files(&[".md"]).into_iter().filter(|(page, _)| page.starts_with(folder)) {
        let mut lines = text.lines();
        let mut before = "";
        while let Some(line) = lines.next() {
            if let Some(language) = line.strip_prefix("```") {
                let body: Vec<&str> = lines.by_ref().take_while(|line| *line != "```").collect();
                let mark = before.trim_start_matches("<!--").trim_end_matches("-->").trim().to_owned();
                let text = body.join("\n") + "\n";
                found.push(Block { page: page.clone(), mark, language: language.to_owned(), text });
            }
            before = line;
        }
    }
    found
}

fn source(example: &str) -> String {
    fs::read_to_string(root().join(format!("crates/oncebox/examples/{example}.rs"))).unwrap()
}

fn fresh_folder() -> PathBuf {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = std::env::temp_dir().join(format!("oncebox-docs-{}-{number}", std::process::id()));
    fs::create_dir_all(&folder).unwrap();
    folder
}

/// The lines without the blanks they all begin with.
fn dedented(text: &str) -> String {
    let filled = text.lines().filter(|line| !line.trim().is_empty());
    let depth = filled.map(|line| line.len() - line.trim_start().len()).min().unwrap_or(0);
    text.lines().map(|line| line.get(depth..).unwrap_or_default().to_owned() + "\n").collect()
}

/// Whether some run of whole lines of `text` is `part`, however far it is indented.
fn has_part(text: &str, part: &str) -> bool {
    let (lines, length) = (text.lines().collect::<Vec<_>>(), part.lines().count());
    lines.windows(length).any(|run| dedented(&run.join("\n")) == dedented(part))
}

#[test]
fn rust_in_the_guides_is_that_of_the_examples() {
    let mut whole = Vec::new();
    for block in blocks("docs/guide").iter().filter(|block| block.language.starts_with("rust")) {
        let at = format!("{}: {:?}", block.page, block.mark);
        if let Some(example) = block.mark.strip_prefix("example: ") {
            assert_eq!(block.text, source(example), "{at}");
            whole.push(example.to_owned());
        } else if let Some(example) = block.mark.strip_prefix("part of example: ") {
            assert!(has_part(&source(example), &block.text), "{at} is not in it:\n{}", block.text);
        } else {
            panic!("{at} names no example");
        }
    }

    assert_eq!(whole.len(), EXAMPLES.len(), "each guide shows its whole program");
    assert!(EXAMPLES.iter().all(|example| whole.iter().any(|shown| shown == example)), "{whole:?}");
}

/// The program of an example. A full test run has built it; a filtered one may not have.
fn program(example: &str) -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let built = test.ancestors().nth(2).unwrap().join("examples").join(example);
    let changed = |path: &Path| fs::metadata(path).and_then(|file| file.modified()).ok();
    let text = root().join(format!("crates/oncebox/examples/{example}.rs"));
    if changed(&built) < changed(&text) {
        let build = ["build", "--quiet", "-p", "oncebox", "--example", example];
        assert!(Command::new(env!("CARGO")).current_dir(root()).args(build).status().unwrap().success());
    }
    built
}

#[test]
fn examples_print_what_the_guides_say() {
    for example in EXAMPLES {
        let folder = fresh_folder();
        let run = Command::new(program(example)).arg(folder.join("example.db")).output().unwrap();
        fs::remove_dir_all(&folder).unwrap();
        let printed = String::from_utf8(run.stdout).unwrap();

        assert!(run.status.success(), "{example}: {}", String::from_utf8_lossy(&run.stderr));
        let mark = format!("output of example: {example}");
        let shown = blocks("docs/guide").into_iter().find(|block| block.mark == mark);
        assert_eq!(printed, shown.unwrap_or_else(|| panic!("no {mark}")).text, "{example}");
    }
}

/// Takes everything.
struct Anywhere;

impl Publisher for Anywhere {
    async fn publish(&self, batch: &[Envelope]) -> Vec<Result<(), Failure>> {
        vec![Ok(()); batch.len()]
    }
}

fn statements(store: &str) -> String {
    let mark = format!("sql: {store}");
    let found: Vec<_> = blocks("docs/").into_iter().filter(|block| block.mark == mark).collect();
    assert!(!found.is_empty(), "no {mark}");
    found.into_iter().map(|block| block.text).collect()
}

/// Relays until nothing is left; tells how many messages left and how many did not.
async fn relayed(store: impl Mailbox) -> (usize, usize) {
    let mut relay = Relay::builder(store, Anywhere).build().unwrap();
    let mut total = (0, 0);
    loop {
        let progress = relay.step().await.unwrap();
        if !progress.moved() {
            return total;
        }
        total = (total.0 + progress.published, total.1 + progress.parked);
    }
}

/// Rows the documented statements put: one for each INSERT into the log.
fn puts(sql: &str, table: &str) -> usize {
    sql.matches(&format!("INSERT INTO {table} ")).count()
}

#[tokio::test]
async fn the_statements_for_sqlite_put_messages_that_leave() {
    let folder = fresh_folder();
    let store = sqlite::SqliteStore::create(folder.join("contract.db").to_str().unwrap()).await.unwrap();
    sqlite::migrate::up(&store).await.unwrap();
    let sql = statements("sqlite");

    sqlx::raw_sql(AssertSqlSafe(sql.clone())).execute(store.pool()).await.unwrap();
    let (left, parked) = relayed(store.clone()).await;

    assert_eq!((left, parked), (puts(&sql, "oncebox_outbox"), 0));
    store.verify().await.unwrap();
    store.pool().close().await;
    fs::remove_dir_all(folder).unwrap();
}

#[tokio::test]
async fn the_statements_for_postgres_put_messages_that_leave() {
    let name = "the_statements_for_postgres_put_messages_that_leave";
    let Some(url) = service_url("ONCEBOX_TEST_POSTGRES_URL", name) else { return };
    let schema = format!("docs_{}", std::process::id());
    let pool = postgres::pool_options().max_connections(4).connect(&url).await.unwrap();
    let store = postgres::PostgresStore::new(pool.clone()).schema(Identifier::new(&schema).unwrap());
    postgres::migrate::up(&store).await.unwrap();
    let sql = statements("postgres");

    let adapted = sql.replace("oncebox.", &format!("{schema}."));
    let put = sqlx::raw_sql(AssertSqlSafe(adapted)).execute(&pool).await;
    let told = if put.is_ok() { Some(relayed(store).await) } else { None };
    let drop = format!("DROP SCHEMA {schema} CASCADE");
    sqlx::raw_sql(AssertSqlSafe(drop)).execute(&pool).await.unwrap();

    put.unwrap();
    assert_eq!(told, Some((puts(&sql, "oncebox.outbox"), 0)));
}

/// GitHub's name for a heading.
fn anchor(heading: &str) -> String {
    let kept = heading.to_lowercase().replace(|c: char| !(c.is_alphanumeric() || " -_".contains(c)), "");
    kept.trim().replace(' ', "-")
}

/// The text without fenced blocks, in which brackets mean something else.
fn prose(text: &str) -> String {
    text.split("\n```").step_by(2).collect()
}

#[test]
fn every_relative_link_leads_somewhere() {
    let pages = files(&[".md"]);
    let mut broken = Vec::new();
    for (page, text) in &pages {
        let here = Path::new(page).parent().unwrap();
        let text = prose(text);
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.contains("://") || link.starts_with("mailto:") {
                continue;
            }
            let (file, heading) = link.split_once('#').unwrap_or((link, ""));
            let target = if file.is_empty() { root().join(page) } else { root().join(here).join(file) };
            let is_there = target.exists()
                && (heading.is_empty()
                    || fs::read_to_string(&target).is_ok_and(|text| {
                        let headings = text.lines().filter(|line| line.starts_with('#'));
                        headings.map(|line| anchor(line.trim_start_matches('#'))).any(|name| name == heading)
                    }));
            if !is_there {
                broken.push(format!("{page}: {link}"));
            }
        }
    }
    assert!(broken.is_empty(), "\n{}\n", broken.join("\n"));
}

fn reference(page: &str) -> String {
    fs::read_to_string(root().join("docs/reference").join(page)).unwrap()
}

#[test]
fn every_kind_is_in_the_reference() {
    let errors = reference("errors.md");

    for kind in Kind::ALL {
        assert!(errors.contains(&format!("| `{}` |", kind.name())), "{kind:?}");
    }
}

#[test]
fn every_metric_is_in_the_reference_and_no_other() {
    let quoted = |text: &str, quote: char| -> Vec<String> {
        let pieces = text.split(quote).filter(|piece| piece.starts_with("oncebox_") && !piece.contains(' '));
        let mut names: Vec<_> = pieces.map(str::to_owned).collect();
        names.sort_unstable();
        names.dedup();
        names
    };
    let read =
        |part: &str| fs::read_to_string(root().join(format!("crates/{part}/src/telemetry.rs"))).unwrap();
    let telemetry = read("flow") + &read("gate");

    let counted = quoted(&telemetry, '"');

    assert!(!counted.is_empty());
    assert_eq!(counted, quoted(&reference("metrics.md"), '`'));
}

/// The fields of a value and their values, of a struct inside it only the name.
fn fields(value: &impl Debug) -> Vec<(String, String)> {
    let text = format!("{value:?}");
    let (_, body) = text.split_once(" { ").unwrap();
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for c in body.strip_suffix(" }").unwrap().chars() {
        match c {
            '{' | '(' | '[' => depth += 1,
            '}' | ')' | ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().unwrap().push(c);
    }
    let pairs = parts.iter().filter_map(|part| part.trim().split_once(": "));
    pairs.map(|(name, value)| (name.to_owned(), value.split(" {").next().unwrap().to_owned())).collect()
}

#[test]
fn every_option_is_in_the_reference_with_its_default() {
    let page = reference("options.md");
    let janitor = fields(&Janitor::new(MemoryStore::new()));
    let chosen = janitor
        .into_iter()
        .filter(|(name, _)| !["store", "clock", "last", "holder"].contains(&name.as_str()));
    let sections = [
        ("RelayOptions", fields(&RelayOptions::default())),
        ("InboxOptions", fields(&InboxOptions::default())),
        ("HandlerOptions", fields(&HandlerOptions::default())),
        ("WorkOptions", fields(&WorkOptions::default())),
        ("RetryPolicy", fields(&RetryPolicy::default())),
        ("Backoff", fields(&Backoff::default())),
        ("Limits", fields(&Limits::default())),
        ("Janitor", chosen.collect()),
        ("Policy", fields(&oncebox::gate::Policy::default())),
    ];

    for (section, fields) in sections {
        let text = page.split("\n## ").find(|text| text.lines().next() == Some(section)).unwrap_or_default();
        assert!(!fields.is_empty() && !text.is_empty(), "{section}");
        for (name, value) in fields {
            let row = format!("| `{name}` | `{value}` |");
            assert!(text.contains(&row), "{section} lacks {row}");
        }
    }
}

/// Every column of the envelope's table in the migration.
#[test]
fn every_table_and_column_is_in_the_reference() {
    let schema = reference("schema.md");
    let folder = root().join("crates/stores/src/postgres/migrations");
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let migration: String = files.map(|file| fs::read_to_string(file).unwrap()).collect();

    let tables = migration.lines().filter_map(|line| line.strip_prefix("CREATE TABLE oncebox."));
    for table in tables.map(|rest| rest.trim_end_matches(" (")) {
        assert!(schema.contains(&format!("\n## {table}\n")), "table {table}");
    }
    let columns = migration.lines().filter_map(|line| line.strip_prefix("    "));
    for column in columns.filter(|line| line.starts_with(|c: char| c.is_ascii_lowercase())) {
        let name = column.split(' ').next().unwrap();
        assert!(schema.contains(&format!("`{name}`")), "column {name}");
    }
    for added in migration.split(" ADD COLUMN ").skip(1) {
        let name = added.split(' ').next().unwrap();
        assert!(schema.contains(&format!("`{name}`")), "column {name}");
    }
}

#[test]
fn every_field_of_the_envelope_is_in_the_reference() {
    let page = reference("envelope.md");
    let code = fs::read_to_string(root().join("crates/core/src/envelope.rs")).unwrap();
    let body = code.split("pub struct Envelope {").nth(1).and_then(|rest| rest.split("\n}").next()).unwrap();

    for field in body.lines().filter_map(|line| line.trim().strip_prefix("pub ")) {
        let name = field.split(':').next().unwrap();
        assert!(page.contains(&format!("| `{name}` |")), "{name}");
    }
}

#[test]
fn the_worked_example_of_a_signature_is_right() {
    let block = |mark: &str| {
        let found = blocks("docs/reference").into_iter().find(|block| block.mark == mark);
        found.unwrap_or_else(|| panic!("no {mark}")).text
    };
    let (code, shown) = (block("python: signature"), block("output of python: signature"));
    let mut envelope = Envelope {
        tenant: "acme".into(),
        source: "/shop".into(),
        id: "order-7".into(),
        kind: "order.placed.v1".into(),
        key: Some("7".into()),
        time: Some(Timestamp::from_micros(1_767_225_600_000_000)),
        payload: b"{\"order_id\": 7}".to_vec(),
        ..Envelope::default()
    };
    let keyring = Keyring::new("2026-01", "an example of a secret, 32 bytes").unwrap();

    assert_eq!(keyring.sign(&envelope), shown.trim_end());
    envelope.headers.insert(HEADER.into(), shown.trim_end().into());
    assert_eq!(keyring.verify(&envelope), Ok(()));
    // Where there is no Python, the values above are the proof.
    if let Ok(run) = Command::new("python3").arg("-c").arg(code).output() {
        assert_eq!(String::from_utf8_lossy(&run.stdout), shown);
    }
}

#[test]
fn every_attribute_on_the_wire_is_in_the_reference() {
    let page = reference("headers.md");
    let code = fs::read_to_string(root().join("crates/core/src/cloudevents/attributes.rs")).unwrap();
    let names = code.lines().filter_map(|line| line.trim().strip_prefix('"')?.split_once("\" => "));

    let mut count = 0;
    for (name, _) in names {
        assert!(page.contains(&format!("`{name}`")), "{name}");
        count += 1;
    }
    assert!(count >= 19, "{count}");
    assert!(page.contains(&format!("`{HEADER}`")));
}
