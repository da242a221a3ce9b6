//! `oncebox dead edit`: a dead letter goes back with another payload, as a
//! message of its own that names the old one as its cause.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use oncebox_core::letters::LetterId;
use oncebox_core::limits::MAX_PAYLOAD_BYTES;
use oncebox_core::{DeadLetter, Envelope, signature};
use serde::de::IgnoredAny;
use serde_json::json;
use tokio::process::Command;
use tokio::signal::unix::{SignalKind, signal};
use uuid::Uuid;

use super::{One, missing, read, unclaimed};
use crate::fault::{Class, Fault};
use crate::output::{Format, plain};

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    #[command(flatten)]
    one: One,
    /// The payload: a file, or - for standard input; without, $VISUAL or $EDITOR opens the old one
    #[arg(long, value_name = "FILE")]
    payload: Option<PathBuf>,
}

pub(super) async fn run(args: Args, format: Format) -> Result<ExitCode, Fault> {
    let id = args.one.letter.letter()?;
    let database = args.one.database.open_verified().await?;
    let old = read(&database, id).await?;
    if old.handler.is_empty() {
        return Err(unclaimed(&old));
    }
    let payload = match &args.payload {
        Some(file) => {
            let payload = read_payload(file)?;
            check(&old, &payload)?;
            payload
        }
        None => edit(&old).await?,
    };
    let edited = linked(&old, payload, Uuid::now_v7().to_string());
    let Some(number) = database.letters().amend_letter(id, &edited, None).await? else {
        return Err(missing(id));
    };
    let delivery = LetterId::Delivery(number);
    match format {
        Format::Json => println!(
            "{}",
            json!({ "v": 1, "letter": id.to_string(), "delivery": delivery.to_string(), "id": edited.id,
                    "causation_id": edited.causation_id })
        ),
        Format::Text => println!(
            "{delivery} takes the place of {id}: message {}, caused by {}",
            edited.id,
            plain(edited.causation_id.as_deref().unwrap_or("a message without id")),
        ),
    }
    Ok(ExitCode::SUCCESS)
}

/// The message that goes back.
fn linked(old: &DeadLetter, payload: Vec<u8>, id: String) -> Envelope {
    let before = &old.envelope;
    let mut edited = Envelope { id, payload, ..before.clone() };
    if !before.id.is_empty() {
        edited.causation_id = Some(before.id.clone());
    }
    // It was made for the old body.
    edited.headers.remove(signature::HEADER);
    edited
}

fn read_payload(file: &Path) -> Result<Vec<u8>, Fault> {
    if file.as_os_str() == "-" {
        return bounded(std::io::stdin().lock(), "standard input");
    }
    let name = plain(&file.display().to_string());
    let opened = File::open(file).map_err(|error| unreadable(&name, &error))?;
    bounded(opened, &name)
}

fn bounded(source: impl Read, name: &str) -> Result<Vec<u8>, Fault> {
    let mut payload = Vec::new();
    let limit = u64::try_from(MAX_PAYLOAD_BYTES).unwrap_or(u64::MAX).saturating_add(1);
    source.take(limit).read_to_end(&mut payload).map_err(|error| unreadable(name, &error))?;
    if payload.len() > MAX_PAYLOAD_BYTES {
        let text = format!("{name} has more than {MAX_PAYLOAD_BYTES} bytes, which no message may have");
        return Err(Fault::new(Class::Input, text));
    }
    Ok(payload)
}

fn unreadable(name: &str, error: &std::io::Error) -> Fault {
    Fault::new(Class::Input, format!("cannot read the payload from {name}: {error}"))
}

/// Whether the payload can take the place of the old one.
fn check(old: &DeadLetter, payload: &[u8]) -> Result<(), Fault> {
    if payload == old.envelope.payload {
        let help = format!("`oncebox dead requeue {}` tries it again as it is", old.id);
        return Err(
            Fault::new(Class::Config, "the payload is the same as before: nothing was done").help(help)
        );
    }
    if !is_json(&old.envelope) {
        return Ok(());
    }
    serde_json::from_slice::<IgnoredAny>(payload).map(drop).map_err(|error| {
        let text = format!("the payload must be JSON, as its content type says: {error}");
        Fault::new(Class::Input, text).help("nothing was changed; mend it and try again")
    })
}

/// By its content type; without one, by what it was.
fn is_json(envelope: &Envelope) -> bool {
    let media = envelope.content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match media.as_str() {
        "" => serde_json::from_slice::<IgnoredAny>(&envelope.payload).is_ok(),
        media => media == "application/json" || media == "text/json" || media.ends_with("+json"),
    }
}

/// Lets a person change the payload in an editor.
async fn edit(old: &DeadLetter) -> Result<Vec<u8>, Fault> {
    let editor =
        ["VISUAL", "EDITOR"].iter().find_map(|name| std::env::var(name).ok().filter(|e| !e.is_empty()));
    let Some(editor) = editor else {
        return Err(Fault::new(Class::Input, "there is no editor to open")
            .help("set EDITOR, or pass the payload with --payload FILE"));
    };
    let before = &old.envelope.payload;
    if std::str::from_utf8(before).is_err() {
        return Err(Fault::new(Class::Config, format!("the payload of {} is not text", old.id))
            .help("pass another one with --payload FILE"));
    }
    let ending = if is_json(&old.envelope) { "json" } else { "txt" };
    let mut draft = Draft::write(before, ending)?;
    open(&editor, &draft.path).await?;
    let mut payload = read_payload(&draft.path)?;
    // Editors end the last line, and the producer did not.
    if payload.ends_with(b"\n") && !before.ends_with(b"\n") {
        payload.pop();
    }
    check(old, &payload).map_err(|fault| {
        if payload == *before {
            return fault;
        }
        draft.is_kept = true;
        let path = draft.path.display();
        fault.help(format!("your text is in {path}: mend it and pass it with --payload"))
    })?;
    Ok(payload)
}

async fn open(editor: &str, path: &Path) -> Result<(), Fault> {
    // An interrupt is the editor's to answer; without this it would end this process and leave the draft.
    let _interrupts = signal(SignalKind::interrupt())?;
    // Through a shell, because an editor may be named with arguments.
    let ended =
        Command::new("sh").arg("-c").arg(format!("{editor} \"$1\"")).arg("sh").arg(path).status().await;
    match ended {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => {
            let text = format!("the editor failed ({status}): nothing was changed");
            Err(Fault::new(Class::Failed, text).help("VISUAL or EDITOR names the editor"))
        }
        Err(error) => Err(Fault::new(Class::Failed, format!("cannot start the editor: {error}"))),
    }
}

/// A file for the editor, readable by its owner only and gone in the end.
struct Draft {
    path: PathBuf,
    is_kept: bool,
}

impl Draft {
    fn write(payload: &[u8], ending: &str) -> Result<Self, Fault> {
        let path = std::env::temp_dir().join(format!("oncebox-{}.{ending}", Uuid::now_v7().simple()));
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let draft = Self { path, is_kept: false };
        file.write_all(payload)?;
        Ok(draft)
    }
}

impl Drop for Draft {
    fn drop(&mut self) {
        if !self.is_kept {
            std::fs::remove_file(&self.path).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use oncebox_core::Timestamp;

    use super::*;

    fn letter(content_type: &str, payload: &[u8]) -> DeadLetter {
        DeadLetter {
            id: LetterId::Delivery(42),
            scope: String::new(),
            channel: "orders".into(),
            handler: "ship-order".into(),
            code: "permanent".into(),
            reason: "no".into(),
            attempts: 1,
            received_at: Timestamp::default(),
            died_at: Timestamp::default(),
            blocks: 0,
            history: Vec::new(),
            envelope: Envelope {
                id: "m-1".into(),
                content_type: content_type.into(),
                payload: payload.to_vec(),
                headers: [(signature::HEADER.to_owned(), "v1".to_owned()), ("a".into(), "b".into())].into(),
                ..Envelope::default()
            },
        }
    }

    #[test]
    fn json_stays_json_and_other_content_is_free() {
        for media in ["application/json", "Application/JSON; charset=utf-8", "application/order+json", ""] {
            assert!(check(&letter(media, b"{}"), b"{\"a\": 1}").is_ok(), "{media}");
            assert!(check(&letter(media, b"{}"), b"{\"a\": 1").is_err(), "{media}");
        }
        assert!(check(&letter("text/plain", b"{}"), b"{").is_ok());
        assert!(check(&letter("", b"hello"), b"{").is_ok());
        assert!(check(&letter("text/plain", b"same"), b"same").is_err(), "nothing was changed");
    }

    #[test]
    fn an_edited_message_names_the_old_one_and_loses_its_signature() {
        let edited = linked(&letter("application/json", b"{}"), b"1".to_vec(), "m-2".into());

        assert_eq!((edited.id.as_str(), edited.causation_id.as_deref()), ("m-2", Some("m-1")));
        assert_eq!(edited.headers.into_keys().collect::<Vec<_>>(), ["a"]);
    }
}
