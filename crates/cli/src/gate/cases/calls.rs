//! Calls of gRPC. All of them are 200 to HTTP; how they went comes after the body.

use super::super::call::{Called, KIND};
use super::super::client::Message;
use super::{Outcome, Stand, ensure, expect};

const OK: &str = "0";
const NOT_FOUND: &str = "5";

fn placing(stand: &Stand, wish: &str) -> Message {
    stand.message("/fixture.Orders/Place").kind(KIND).header("x-fx", wish).key(&stand.key())
}

async fn called(stand: &Stand, message: &Message) -> Result<Called, String> {
    let called = stand.target.call(message).await.map_err(|error| error.to_string())?;
    let replayed = if called.is_replayed() { " replayed" } else { "" };
    stand.note(format!("grpc-status {}{replayed}", called.status().unwrap_or("none")));
    Ok(called)
}

/// The second is the first once more, with what followed its body.
fn is_replay(first: &Called, copy: &Called) -> Outcome {
    expect("marker of the first", first.is_replayed(), false)?;
    expect("marker of the copy", copy.is_replayed(), true)?;
    expect("message", &copy.body, &first.body)?;
    expect("trailers", &copy.trailers, &first.trailers)?;
    expect("status", copy.status(), first.status())
}

pub(super) async fn unary(stand: Stand) -> Outcome {
    let message = placing(&stand, "{}");
    let (first, copy) = (called(&stand, &message).await?, called(&stand, &message).await?);
    expect("status of a call", first.status(), Some(OK))?;
    ensure(first.trailers.contains_key("x-fx-trailer"), || "the trailers of a call are lost".into())?;
    is_replay(&first, &copy)?;
    expect("runs", stand.runs().await?, 1)?;

    let refused = stand.apart("refused");
    let message = placing(&refused, r#"{"status":5}"#);
    let (first, copy) = (called(&refused, &message).await?, called(&refused, &message).await?);
    expect("status of a call for what is not there", first.status(), Some(NOT_FOUND))?;
    is_replay(&first, &copy)?;
    expect("runs of what is refused for good", refused.runs().await?, 1)?;

    // Unavailable, said in the head of a reply without a body, and after a body.
    for (name, wish) in [("head", r#"{"fail_first":14}"#), ("tail", r#"{"fail_first":14,"chunks":1}"#)] {
        let passing = stand.apart(name);
        let message = placing(&passing, wish);
        let (first, again) = (called(&passing, &message).await?, called(&passing, &message).await?);
        expect("status of a call that fails", first.status(), Some("14"))?;
        expect("status of the next", again.status(), Some(OK))?;
        expect("marker of the next", again.is_replayed(), false)?;
        expect("runs of what may pass", passing.runs().await?, 2)?;
    }
    Ok(())
}
