//! What a configuration means as a whole.

use super::*;

fn config(text: &str, variables: &[(&str, &str)], flags: &[(&'static str, &str)]) -> Result<Config, String> {
    let flags: Flags = flags.iter().map(|(flag, text)| (*flag, (*text).to_owned())).collect();
    let variable = |name: &'static str| {
        let found = variables.iter().find(|(known, _)| *known == name);
        found.map(|(_, value)| (*value).to_owned())
    };
    let tables = file::parse("oncebox.toml", text).map_err(|fault| format!("{fault:?}"))?;
    let config = overlay::over(tables, &flags, variable).and_then(Config::of);
    config.map_err(|fault| format!("{fault:?}"))
}

const ONE: &str = "[[store]]\nurl = \"app.db\"\n[[sink]]\nto = \"stdout\"\nbatch = 7\npoll = \"1s\"\n";

#[test]
fn without_a_file_flags_are_enough() {
    let config = config("", &[], &[("--db", "app.db"), ("--to", "amqp://u:p@h/v")]).unwrap();

    let sink = &config.sinks[0];
    assert_eq!((sink.kind, sink.name(), sink.store), (Kind::RabbitMq, "rabbitmq", 0));
    assert_eq!(sink.url.as_ref().unwrap().read().unwrap().reveal(), "amqp://u:p@h/v");
    assert_eq!((sink.require, sink.relay.batch), (Grade::C, 500));
    assert_eq!(config.stores[0].keep, Some(Duration::from_secs(7 * 86_400)));
    assert!(config.warnings.is_empty());
}

#[test]
fn flags_go_before_variables_before_the_file_before_defaults() {
    let variables = [("ONCEBOX_BATCH", "8"), ("ONCEBOX_POLL", "2s"), ("DATABASE_URL", "other.db")];
    let config = config(ONE, &variables, &[("--batch", "9")]).unwrap();

    let sink = &config.sinks[0].relay;
    assert_eq!((sink.batch, sink.poll, sink.workers), (9, Duration::from_secs(2), 1));
    let shown = config.show(false);
    for (line, origin) in [
        ("batch = 9", "# --batch"),
        ("poll = \"2s\"", "# ONCEBOX_POLL"),
        ("url = \"app.db\"", "# oncebox.toml:2"),
        ("workers = 1", "# default"),
    ] {
        assert!(shown.lines().any(|l| l.starts_with(line) && l.ends_with(origin)), "{line}: {shown}");
    }
}

#[test]
fn database_url_fills_a_gap() {
    let config = config("", &[("DATABASE_URL", "app.db"), ("ONCEBOX_TO", "stdout")], &[]).unwrap();

    assert!(config.show(false).contains("# DATABASE_URL"));
}

#[test]
fn what_is_shown_carries_no_secret() {
    let text = "[[store]]\nurl = \"postgres://u:hunter2@h/d\"\n[[sink]]\nto = \"nats\"\nurl = \"nats://hunter2@h\"\n";
    let config = config(text, &[], &[]).unwrap();

    for shown in [config.show(false), config.show(true), format!("{:?}", (&config.stores, &config.sinks))] {
        assert!(!shown.contains("hunter2"), "{shown}");
    }
    assert_eq!(config.warnings.len(), 1, "a password is in plain sight");
    assert!(config.warnings[0].contains("oncebox.toml:2"), "{:?}", config.warnings);
}

#[test]
fn several_stores_and_sinks_are_told_apart() {
    let text = "[[store]]\nname = \"a\"\nurl = \"a.db\"\n[[store]]\nname = \"b\"\nurl = \"b.db\"\nkeep = \"off\"\n\
        [[sink]]\nname = \"x\"\nstore = \"b\"\nto = \"stdout\"\n\
        [[sink]]\nname = \"x\"\nstore = \"a\"\nto = \"http\"\nurl = \"https://h\"\n\
        [[sink.route]]\nmessage = \"order.*\"\nskip = true\n[[sink.route]]\nmessage = \"*\"\nmax_bytes = 10\n";
    let config = config(text, &[], &[]).unwrap();

    assert_eq!((config.sinks[0].store, config.sinks[1].store), (1, 0));
    assert_eq!(config.stores[1].keep, None);
    let rules = config.sinks[1].routes.rules();
    assert_eq!(rules[0].to, None);
    assert_eq!((rules[1].to.as_deref(), rules[1].max_bytes), (Some("{destination}"), Some(10)));
}

#[test]
fn contradictions_are_refused_by_name() {
    let two = "[[store]]\nname = \"a\"\nurl = \"a.db\"\n[[store]]\nname = \"b\"\nurl = \"b.db\"\n";
    let cases: [(String, &str); 11] = [
        (String::new(), "no database was named"),
        ("[[store]]\nurl = \"a.db\"\n".into(), "no destination was named"),
        (format!("{two}[[sink]]\nto = \"stdout\"\n"), "which store"),
        (format!("{two}[[sink]]\nto = \"stdout\"\nstore = \"aa\"\n"), "did you mean `a`"),
        (two.replace("\"b\"", "\"a\""), "two stores are called"),
        (format!("{ONE}[[sink]]\nto = \"stdout\"\n"), "two sinks of one store are called \\\"stdout\\\""),
        (format!("{ONE}[[sink]]\nname = \"s\"\nto = \"stdout\"\n"), "lines would mix"),
        (ONE.replace("stdout", "nats"), "needs a url"),
        (format!("{}url = \"amqp://h\"\n", ONE.replace("stdout", "nats")), "something else"),
        (format!("{ONE}[[sink.route]]\nto = \"x\"\n"), "needs a `message`"),
        (format!("{ONE}[sink.signing]\nkey_id = \"k\"\n"), "a signing key needs"),
    ];

    for (text, reason) in cases {
        let refusal = config(&text, &[], &[]).err().unwrap_or_else(|| panic!("accepted: {text}"));
        assert!(refusal.contains(reason), "{text}: {refusal}");
    }
    let several = format!("{ONE}[[sink]]\nname = \"s\"\nto = \"http\"\n");
    let refusal = config(&several, &[("ONCEBOX_BATCH", "1")], &[]).err().unwrap();
    assert!(refusal.contains("ONCEBOX_BATCH speaks of one of the sinks"), "{refusal}");
    let refusal = config(ONE, &[], &[("--to", "kafka://u:hunter2@h")]).err().unwrap();
    assert!(refusal.contains("--to") && !refusal.contains("hunter2"), "{refusal}");
}
