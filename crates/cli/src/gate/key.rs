//! `oncebox gate key`: what a client should send as `Idempotency-Key`, and
//! whether what it sends is one.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand, ValueEnum};
use oncebox_core::gate::{KeySyntax, RequestKey};
use oncebox_gate::keys;
use serde_json::json;

use super::ProfileName;
use crate::fault::{Class, Fault};
use crate::output::Format;

/// The largest body whose key is made.
const MOST: u64 = 64 << 20;

#[derive(Debug, ClapArgs)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Tell whether a gate takes this for a key; exit code 1 if it does not
    Check(CheckArgs),
    /// Make a key
    New(NewArgs),
}

#[derive(Debug, ClapArgs)]
struct CheckArgs {
    /// The value of the header
    key: String,
    /// What the gate behaves like
    #[arg(long, value_enum, default_value = "ietf")]
    profile: ProfileName,
    /// Insist on a quoted string, as the IETF draft has it
    #[arg(long, conflicts_with = "profile")]
    quoted: bool,
}

#[derive(Debug, ClapArgs)]
struct NewArgs {
    /// How it is made
    #[arg(long, value_enum, default_value = "uuid")]
    kind: KindName,
    /// The body whose content is the key, for `--kind content`; - is the standard input
    #[arg(long, value_name = "FILE", required_if_eq("kind", "content"))]
    body: Option<PathBuf>,
    /// The operation and the number of its step, for `--kind step`
    #[arg(long, value_name = "NAME", required_if_eq("kind", "step"))]
    operation: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 1)]
    step: u64,
    /// For `--kind atp`
    #[arg(long, value_name = "NAME", required_if_eq("kind", "atp"))]
    tenant: Option<String>,
    /// For `--kind atp`
    #[arg(long, value_name = "NAME", required_if_eq("kind", "atp"))]
    app: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum KindName {
    /// A UUID of version 7: random, and later ones sort later
    Uuid,
    /// The same as a ULID
    Ulid,
    /// The name of an operation and the number of a step: made again, it is the same
    Step,
    /// The SHA-256 of a body: the same body is the same request
    Content,
    /// tenant:app:unique
    Atp,
}

pub(crate) fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    match args.verb {
        Verb::Check(args) => Ok(check(&args, format)),
        Verb::New(args) => {
            let key = make(&args)?;
            match format {
                Format::Json => println!("{}", json!({ "v": 1, "key": key })),
                Format::Text => println!("{key}"),
            }
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn check(args: &CheckArgs, format: Format) -> ExitCode {
    let syntax = if args.quoted { KeySyntax::QuotedString } else { args.profile.policy().key_syntax };
    let parsed = RequestKey::parse([args.key.as_bytes()], syntax);
    let reason = parsed.as_ref().err().map(ToString::to_string);
    let tenant = parsed.iter().flatten().next().and_then(RequestKey::atp_tenant);
    let bytes = parsed.iter().flatten().next().map(|key| key.as_str().len());
    match (format, &reason) {
        (Format::Json, _) => println!(
            "{}",
            json!({ "v": 1, "valid": reason.is_none(), "reason": reason, "bytes": bytes, "tenant": tenant })
        ),
        (Format::Text, None) => println!("a key of {} bytes", bytes.unwrap_or_default()),
        (Format::Text, Some(reason)) => println!("no key: {reason}"),
    }
    if reason.is_none() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn make(args: &NewArgs) -> Result<String, Fault> {
    let text = |text: &Option<String>| text.clone().unwrap_or_default();
    let (key, syntax) = match args.kind {
        KindName::Uuid => (keys::random(), KeySyntax::Lenient),
        KindName::Ulid => (keys::ulid(), KeySyntax::Lenient),
        KindName::Step => (keys::of_step(&text(&args.operation), args.step), KeySyntax::Lenient),
        KindName::Content => {
            let body = read(args.body.as_deref().unwrap_or(Path::new("-")))?;
            (keys::of_content(&body), KeySyntax::Lenient)
        }
        KindName::Atp => (keys::atp(&text(&args.tenant), &text(&args.app)), KeySyntax::Atp),
    };
    let refuse = |error| Fault::new(Class::Input, format!("what is given makes no key: {error}"));
    RequestKey::parse([key.as_bytes()], syntax).map_err(refuse)?;
    Ok(key)
}

fn read(path: &Path) -> Result<Vec<u8>, Fault> {
    let refuse = |why: String| Fault::new(Class::Input, format!("{}: {why}", path.display()));
    let mut body = Vec::new();
    let read = if path == Path::new("-") {
        std::io::stdin().take(MOST + 1).read_to_end(&mut body)
    } else {
        std::fs::File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut body))
    };
    read.map_err(|error| refuse(error.to_string()))?;
    if body.len() as u64 > MOST {
        return Err(refuse(format!("larger than {MOST} bytes")));
    }
    Ok(body)
}
