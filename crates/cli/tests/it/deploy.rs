//! The files people copy are files that work.

use std::path::{Path, PathBuf};

use crate::program::{command, other, ran};

fn deploy(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy").join(file)
}

#[test]
fn the_sample_configuration_is_understood() {
    let file = deploy("oncebox.toml");

    let run = ran(&mut command(["relay", "--print-config", "-c", file.to_str().unwrap()])).exits(0);

    assert!(
        run.stdout.contains("name = \"partner\"") && run.stdout.contains("message = \"order.*\""),
        "{run:?}"
    );
}

/// The verb that a unit or a compose file starts, with `--help` at its end.
fn explains_itself(arguments: &[&str]) {
    ran(&mut command(arguments.iter().chain(&["--help"]))).exits(0);
}

#[test]
fn the_unit_starts_a_command_that_exists() {
    let unit = std::fs::read_to_string(deploy("systemd/oncebox-relay.service")).unwrap();
    let value = |key: &str| unit.lines().find_map(|line| line.strip_prefix(&format!("{key}="))).unwrap();

    let start = value("ExecStart").strip_prefix("/usr/bin/oncebox ").unwrap();
    explains_itself(&start.split(' ').collect::<Vec<_>>());
    let seconds: u32 = value("TimeoutStopSec").parse().unwrap();
    assert!(seconds > 30, "a drain may take 30 s");
    for line in unit.lines().filter(|line| !line.is_empty() && !line.starts_with('#')) {
        assert!(line.starts_with('[') || line.contains('='), "{line}");
    }
}

#[test]
fn the_compose_file_is_yaml_and_starts_commands_that_exist() {
    let text = std::fs::read_to_string(deploy("compose.yaml")).unwrap();

    for line in text.lines().filter_map(|line| line.trim().strip_prefix("command: ")) {
        let parts: Vec<String> = serde_json::from_str(line).unwrap();
        assert_eq!(parts[0], "oncebox");
        explains_itself(&parts[1..].iter().map(String::as_str).collect::<Vec<_>>());
    }
    // What its variables say is understood together.
    let variables: Vec<(&str, &str)> = text
        .split("\n  relay:")
        .nth(1)
        .unwrap()
        .lines()
        .filter_map(|line| line.trim().split_once(": "))
        .filter(|(name, _)| name.starts_with("ONCEBOX_"))
        .collect();
    assert!(variables.len() >= 4, "{variables:?}");
    let run = ran(command(["relay", "--print-config"]).envs(variables.clone())).exits(0);
    for (name, _) in variables {
        assert!(run.stdout.contains(&format!("# {name}\n")), "{name}: {}", run.stdout);
    }
    if std::process::Command::new("python3")
        .args(["-c", "import yaml"])
        .output()
        .is_ok_and(|o| o.status.success())
    {
        other(
            "python3",
            &["-c", "import sys, yaml; assert 'relay' in yaml.safe_load(sys.stdin)['services']"],
            &text,
        );
    }
}
