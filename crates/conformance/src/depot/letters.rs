//! Dead letters tell their story, and do what a person wants of them.

use std::sync::Arc;
use std::time::Duration;

use oncebox_core::depot::{Standing, Taken};
use oncebox_core::inspect::Inspect;
use oncebox_core::store::Burial;
use oncebox_core::{Dedup, Depot, Envelope, LetterFilter, LetterId, Letters, Requeued};

use super::DepotFixture;
use super::steps::{
    CHANNEL, DEAD, HANDLER, RETRY, deposit, done, finish, finishing, give, put, queue, take, take_one, taken,
};
use crate::sample::{at, full, moment, plain};

/// Has deliveries die at the given time.
async fn dead<F: DepotFixture>(fixture: &F, ids: &[&str], seconds: i64) -> Vec<Taken> {
    let store = fixture.store();
    give(&store, ids, seconds).await;
    let held = take(&store, seconds).await;
    for taken in &held {
        store.conclude(taken.ticket, &DEAD, None, at(seconds)).await.unwrap();
    }
    held
}

fn letter(taken: &Taken) -> LetterId {
    LetterId::Delivery(taken.ticket.number)
}

fn burial<'a>(handler: &'a str, envelope: &'a Envelope) -> Burial<'a> {
    Burial { channel: "other", handler, code: "bad", reason: "bad body", attempts: 3, envelope }
}

async fn listed<F: DepotFixture>(fixture: &F, filter: LetterFilter, limit: usize) -> Vec<String> {
    let letters = fixture.store().letters(&filter, limit).await.unwrap();
    letters.into_iter().map(|letter| letter.envelope.id).collect()
}

pub async fn letters_of_both_kinds_are_listed_oldest_first<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (early, late) = (plain("early"), plain("late"));
    dead(&*fixture, &["1"], 2).await;
    dead(&*fixture, &["2"], 4).await;
    store.bury(&burial("", &early), at(1)).await.unwrap();
    store.bury(&burial(HANDLER, &late), at(3)).await.unwrap();
    let by = |handler: Option<&str>, channel: Option<&str>, code: Option<&str>| LetterFilter {
        handler: handler.map(str::to_owned),
        channel: channel.map(str::to_owned),
        code: code.map(str::to_owned),
    };

    assert_eq!(listed(&*fixture, by(None, None, None), 10).await, ["early", "1", "late", "2"]);
    assert_eq!(listed(&*fixture, by(None, None, None), 3).await, ["early", "1", "late"]);
    assert_eq!(listed(&*fixture, by(Some(HANDLER), None, None), 10).await, ["1", "late", "2"]);
    assert_eq!(listed(&*fixture, by(None, Some("other"), None), 10).await, ["early", "late"]);
    assert_eq!(listed(&*fixture, by(None, None, Some("hopeless")), 1).await, ["1"]);
    assert!(listed(&*fixture, by(Some("g"), None, None), 10).await.is_empty());
    assert_eq!(store.status().await.unwrap().dead_letters, 4);
}

pub async fn a_letter_tells_its_whole_story<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let envelope = full("1");
    put(&store, &[deposit(&envelope, &[HANDLER])], 1).await;
    let first = take_one(&store, 2).await;
    store.conclude(first.ticket, &RETRY, None, at(3)).await.unwrap();
    let second = take_one(&store, 3).await;
    store.conclude(second.ticket, &DEAD, None, at(4)).await.unwrap();

    let found = store.letter(letter(&second)).await.unwrap().unwrap();
    let listed = store.letters(&LetterFilter::default(), 10).await.unwrap().remove(0);

    assert_eq!(found.envelope, envelope);
    assert_eq!((found.id, found.scope.as_str(), found.channel.as_str()), (letter(&first), "", CHANNEL));
    assert_eq!((found.handler.as_str(), found.code.as_str()), (HANDLER, "hopeless"));
    assert_eq!((found.reason.as_str(), found.attempts, found.blocks), ("no use", 2, 0));
    assert_eq!((found.received_at, found.died_at), (moment(1), moment(4)));
    let history: Vec<_> = found.history.iter().map(|a| (a.attempt, a.at, a.code.as_str())).collect();
    assert_eq!(history, [(1, moment(3), "failed"), (2, moment(4), "hopeless")]);
    assert_eq!(listed, oncebox_core::DeadLetter { history: vec![], ..found });
}

pub async fn a_letter_that_came_another_way_is_told_too<F: DepotFixture>(fixture: Arc<F>) {
    let (store, envelope) = (fixture.store(), full("1"));
    store.bury(&burial(HANDLER, &envelope), at(7)).await.unwrap();

    let listed = store.letters(&LetterFilter::default(), 10).await.unwrap().remove(0);

    assert_eq!(listed.envelope, envelope);
    assert_eq!((listed.channel.as_str(), listed.handler.as_str()), ("other", HANDLER));
    assert_eq!((listed.code.as_str(), listed.reason.as_str(), listed.attempts), ("bad", "bad body", 3));
    assert_eq!((listed.received_at, listed.died_at), (moment(7), moment(7)));
    assert!(matches!(listed.id, LetterId::Received(_)));
    assert_eq!(store.letter(listed.id).await.unwrap(), Some(listed));
}

pub async fn a_requeued_letter_has_fresh_attempts<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let held = dead(&*fixture, &["1"], 0).await;

    let requeued = store.requeue_letter(letter(&held[0]), None, at(5)).await.unwrap();
    let again = store.requeue_letter(letter(&held[0]), None, at(5)).await.unwrap();
    let (early, late) = (taken(&store, 4).await, take_one(&store, 5).await);

    assert_eq!((requeued, again), (Requeued::Ready, Requeued::Missing));
    assert!(early.is_empty());
    assert_eq!((late.attempt, late.deaths, late.generation), (1, 0, 0));
    store.conclude(late.ticket, &DEAD, None, at(6)).await.unwrap();
    let story = store.letter(letter(&held[0])).await.unwrap().unwrap();
    assert_eq!(story.history.len(), 2, "the first death is not forgotten");
}

pub async fn a_letter_older_than_the_markers_is_not_requeued<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let held = dead(&*fixture, &["1"], 0).await;
    let window = Some(Duration::from_secs(60));

    let late = store.requeue_letter(letter(&held[0]), window, at(61)).await.unwrap();
    let nothing = taken(&store, 61).await;
    let in_time = store.requeue_letter(letter(&held[0]), window, at(60)).await.unwrap();

    assert_eq!((late, in_time), (Requeued::TooOld, Requeued::Ready));
    assert!(nothing.is_empty());
}

pub async fn a_letter_that_came_another_way_becomes_a_delivery<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let (envelope, stored, nobodys) = (full("1"), plain("2"), plain("3"));
    put(&store, &[oncebox_core::depot::Deposit { channel: "other", ..deposit(&stored, &["g"]) }], 0).await;
    for burial in [burial(HANDLER, &envelope), burial(HANDLER, &stored), burial("", &nobodys)] {
        store.bury(&burial, at(0)).await.unwrap();
    }
    let letters = store.letters(&LetterFilter::default(), 10).await.unwrap();

    let mut answers = Vec::new();
    for letter in &letters {
        answers
            .push((letter.envelope.id.as_str(), store.requeue_letter(letter.id, None, at(5)).await.unwrap()));
    }
    answers.sort_by_key(|(id, _)| *id);

    assert_eq!(answers, [("1", Requeued::Ready), ("2", Requeued::Ready), ("3", Requeued::NoHandler)]);
    let mut held = take(&store, 5).await;
    held.sort_by_key(|taken| taken.envelope.id.clone());
    assert_eq!((&held[0].envelope, &held[1].envelope), (&envelope, &stored));
    assert_eq!((held[0].channel.as_str(), held[0].attempt), ("other", 1));
    assert_eq!(listed(&*fixture, LetterFilter::default(), 10).await, ["3"]);
    done(&store, &held[0], 6).await;
}

pub async fn a_discarded_letter_is_gone_for_good<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    let held = dead(&*fixture, &["1"], 0).await;
    let buried = plain("2");
    store.bury(&burial("", &buried), at(1)).await.unwrap();
    let ids: Vec<LetterId> =
        store.letters(&LetterFilter::default(), 10).await.unwrap().iter().map(|letter| letter.id).collect();

    for id in &ids {
        assert!(store.discard_letter(*id, at(2)).await.unwrap());
        assert!(!store.discard_letter(*id, at(2)).await.unwrap());
        assert_eq!(store.requeue_letter(*id, None, at(2)).await.unwrap(), Requeued::Missing);
        assert_eq!(store.letter(*id).await.unwrap(), None);
    }

    assert_eq!((ids.len(), ids[0]), (2, letter(&held[0])));
    assert!(taken(&store, 100).await.is_empty());
    assert_eq!(store.status().await.unwrap().dead_letters, 0);
}

pub async fn only_dead_letters_are_requeued_discarded_or_amended<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["done", "leased"], 0).await;
    let held = take(&store, 0).await;
    done(&store, &held[0], 0).await;
    let edited = plain("edited");

    let ids = [letter(&held[0]), letter(&held[1]), LetterId::Delivery(999_999), LetterId::Received(999_999)];
    for id in ids {
        assert_eq!(store.requeue_letter(id, None, at(1)).await.unwrap(), Requeued::Missing, "{id}");
        assert!(!store.discard_letter(id, at(1)).await.unwrap(), "{id}");
        assert_eq!(store.amend_letter(id, &edited, at(1)).await.unwrap(), None, "{id}");
        assert_eq!(store.letter(id).await.unwrap(), None, "{id}");
    }

    assert_eq!(store.standing(held[0].ticket).await.unwrap(), Standing::Done);
    assert_eq!(store.standing(held[1].ticket).await.unwrap(), Standing::Held);
    assert!(taken(&store, 1).await.is_empty());
}

pub async fn an_amended_letter_runs_in_the_place_of_the_old_one<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    queue(&store, "k", &["a", "b"], 0).await;
    let a = take_one(&store, 0).await;
    store.conclude(a.ticket, &DEAD, None, at(1)).await.unwrap();
    let edited = Envelope { causation_id: Some("a".into()), payload: b"mended".to_vec(), ..plain("a2") };

    let number = store.amend_letter(letter(&a), &edited, at(2)).await.unwrap();
    let again = store.amend_letter(letter(&a), &edited, at(2)).await.unwrap();
    let held = take_one(&store, 2).await;

    assert_eq!((number, again), (Some(held.ticket.number), None));
    assert_eq!((&held.envelope, held.digest), (&edited, edited.digest()));
    assert_eq!((held.key.id.as_str(), held.lane.as_deref(), held.attempt), ("a2", Some("k"), 1));
    assert_eq!(held.channel, CHANNEL);
    assert!(listed(&*fixture, LetterFilter::default(), 10).await.is_empty());
    done(&store, &held, 3).await;
    assert_eq!(taken(&store, 3).await, ["b"]);
}

pub async fn a_replayed_delivery_runs_once_more<F: DepotFixture>(fixture: Arc<F>) {
    let store = fixture.store();
    give(&store, &["1", "2"], 0).await;
    let held = take(&store, 0).await;
    done(&store, &held[0], 1).await;
    let number = held[0].ticket.number;

    let early = store.replay_delivery(held[1].ticket.number, at(2)).await.unwrap();
    let unknown = store.replay_delivery(999_999, at(2)).await.unwrap();
    let replayed = store.replay_delivery(number, at(2)).await.unwrap();
    let twice = store.replay_delivery(number, at(2)).await.unwrap();
    let again = take_one(&store, 2).await;

    assert_eq!((early, unknown, replayed, twice), (false, false, true, false));
    assert_eq!((again.ticket.number, again.generation, again.attempt), (number, 1, 1));
    assert!(again.ticket.fence > held[0].ticket.fence);
    let key = oncebox_core::depot::replayed(&again.key, again.generation);
    let mark = oncebox_core::store::Mark { key: &key, ..super::steps::mark(&again) };
    let once_more = oncebox_core::depot::Finish { mark: Some(mark), ..finishing(&again) };
    finish(&store, &once_more, 3).await.unwrap();
    assert_eq!(store.standing(again.ticket).await.unwrap(), Standing::Done);
}
