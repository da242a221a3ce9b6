//! A relay's promise about order and loss, case by case.

use super::*;

fn batch(keys: &[Option<&str>]) -> Batch {
    let mut batch = Batch::default();
    for (position, key) in (1..).zip(keys) {
        let envelope = Envelope { key: key.map(Into::into), ..Envelope::default() };
        batch.push(Slot { position, shard: 0, attempts: 0 }, envelope);
    }
    batch
}

fn run(batch: &Batch, results: Vec<Result<(), Failure>>) -> Decision {
    decide(batch, results, &RetryPolicy::default(), OnDead::BlockKey, 0.5)
}

#[test]
fn a_refused_head_parks_its_key_and_nothing_else() {
    let batch = batch(&[Some("a"), Some("b"), Some("a"), None]);

    let decision = run(&batch, vec![Err(Failure::message("too large")), Ok(()), Ok(()), Ok(())]);

    assert_eq!(decision.settled, [2, 4]);
    let parked: Vec<_> = decision.park.iter().map(|p| (p.position, p.parking.name())).collect();
    assert_eq!(parked, [(1, "waiting"), (3, "behind")]);
    assert_eq!(decision.outage, None);
}

#[test]
fn a_confirm_behind_an_unconfirmed_message_of_its_key_does_not_settle() {
    let batch = batch(&[Some("a"), Some("a"), Some("b")]);

    let decision = run(&batch, vec![Err(Failure::unknown("timeout")), Ok(()), Ok(())]);

    assert_eq!(decision.settled, [3]);
    assert_eq!(decision.unsettled, [1, 2]);
    assert!(decision.park.is_empty());
}

#[test]
fn an_outage_parks_nothing() {
    let batch = batch(&[None, Some("a"), None]);

    let decision =
        run(&batch, vec![Ok(()), Err(Failure::destination("down")), Err(Failure::destination("down"))]);

    assert!(decision.park.is_empty());
    assert_eq!(decision.unsettled, [2, 3]);
    assert_eq!(decision.outage.as_deref(), Some("down"));
}

#[test]
fn a_slow_confirm_settles_nothing_and_is_no_outage() {
    let batch = batch(&[Some("a"), Some("a"), None]);

    let decision = run(&batch, vec![Err(Failure::pending("slow")), Ok(()), Ok(())]);

    assert_eq!((decision.settled, decision.unsettled), (vec![3], vec![1, 2]));
    assert!(decision.pending && decision.outage.is_none());
}

#[test]
fn one_destination_out_of_order_steps_aside_and_the_others_flow() {
    let mut batch = batch(&[Some("a"), Some("b"), Some("a")]);
    batch.envelopes[0].destination = "down".into();

    let decision = run(&batch, vec![Err(Failure::destination("full")), Ok(()), Ok(())]);

    assert_eq!(decision.settled, [2]);
    let parked: Vec<_> = decision.park.iter().map(|p| (p.position, p.parking.name(), p.attempts)).collect();
    assert_eq!(parked, [(1, "waiting", 0), (3, "behind", 0)]);
    assert_eq!((decision.outage, decision.unsettled), (None, vec![]));
}

#[test]
fn what_a_destination_does_not_take_steps_aside_if_it_took_something_later() {
    let full = || Err(Failure::destination("no queue for this type"));
    let mut one = batch(&[Some("a"), None, None]);

    let decision = run(&one, vec![full(), Ok(()), full()]);
    let dark = run(&one, vec![full(), full(), full()]);
    one.overtaken();
    let overtaken = run(&one, vec![full(), full(), full()]);

    assert_eq!((decision.settled, decision.unsettled), (vec![2], vec![3]));
    let parked: Vec<_> = decision.park.iter().map(|p| (p.position, p.attempts)).collect();
    assert_eq!(parked, [(1, 0)], "nothing came after the last, so that it may be an outage");
    assert_eq!((dark.park.len(), dark.unsettled.len()), (0, 3));
    assert_eq!((overtaken.park.len(), overtaken.outage), (3, None));
}

#[test]
fn destinations_are_told_apart_by_where_messages_really_go() {
    let mut one = batch(&[None, None, None]);
    one.envelopes[0].kind = "skipped".into();
    one.envelopes[2].kind = "down".into();
    let results = || vec![Ok(()), Ok(()), Err(Failure::destination("full"))];
    let to = |envelope: &Envelope| (envelope.kind != "skipped").then(|| format!("to {}", envelope.kind));

    let unaware = run(&one, results());
    one.redirect(to);
    let aware = run(&one, results());
    let mut alone = batch(&[None, None]);
    alone.envelopes[0].kind = "skipped".into();
    alone.redirect(to);
    let outage = run(&alone, vec![Ok(()), Err(Failure::destination("full"))]);

    assert_eq!((unaware.unsettled, unaware.outage.as_deref()), (vec![3], Some("full")));
    assert_eq!((aware.park.len(), aware.outage), (1, None), "another destination took something");
    assert_eq!(outage.outage.as_deref(), Some("full"), "what was not sent proves nothing");
}

#[test]
fn parked_rows_whose_destination_is_down_stay_parked_unblamed() {
    let batch = batch(&[Some("a"), Some("a"), None]);
    let down = || Err(Failure::destination("down"));

    let mut decision = run(&batch, vec![down(), down(), down()]);
    decision.stay_parked(&batch, &RetryPolicy::default(), 0.5);

    let parked: Vec<_> = decision.park.iter().map(|p| (p.position, p.parking.name(), p.attempts)).collect();
    assert_eq!(parked, [(1, "waiting", 0), (2, "behind", 0), (3, "waiting", 0)]);
    assert!(decision.unsettled.is_empty() && decision.outage.is_none());
}

#[test]
fn a_waiting_row_waits_at_least_as_long_as_its_destination_wishes() {
    let long = Duration::from_secs(900);
    let wait = |wish| {
        let refused = Err(Failure::message("slow down").after(wish));
        run(&batch(&[None]), vec![refused]).park.first().map(|p| p.parking.clone())
    };

    assert_eq!(wait(long), Some(Parking::Waiting { after: long }));
    assert_eq!(wait(MAX_RETRY_AFTER * 24), Some(Parking::Waiting { after: MAX_RETRY_AFTER }));
    let backoff = RetryPolicy::default().backoff.delay(1, 0.5);
    assert_eq!(wait(Duration::ZERO), Some(Parking::Waiting { after: backoff }));
}

#[test]
fn an_outage_lasts_as_long_as_the_most_patient_wish() {
    let batch = batch(&[None, None, Some("a")]);
    let busy = |seconds| Err(Failure::destination("busy").after(Duration::from_secs(seconds)));

    let decision = run(&batch, vec![Ok(()), busy(1), busy(3)]);

    assert_eq!(decision.retry_after, Some(Duration::from_secs(3)));
    assert_eq!((decision.settled, decision.unsettled), (vec![1], vec![2, 3]));
}

#[test]
fn a_destination_that_wants_to_be_left_alone_for_long_steps_aside() {
    let batch = batch(&[Some("a"), Some("a"), None]);
    let away = || Err(Failure::destination("quota").after(Duration::from_secs(600)));

    let decision = run(&batch, vec![away(), away(), away()]);

    let parked: Vec<_> = decision.park.iter().map(|p| (p.position, p.parking.clone(), p.attempts)).collect();
    let waiting = Parking::Waiting { after: Duration::from_secs(600) };
    assert_eq!(parked, [(1, waiting.clone(), 0), (2, Parking::Behind, 0), (3, waiting, 0)]);
    assert_eq!((decision.outage, decision.retry_after), (None, None));
}

#[test]
fn a_parked_row_waits_for_its_own_destination_only() {
    let batch = batch(&[None, None]);
    let results = vec![
        Err(Failure::destination("busy").after(Duration::from_secs(4))),
        Err(Failure::unknown("timeout")),
    ];

    let mut decision = run(&batch, results);
    decision.stay_parked(&batch, &RetryPolicy::default(), 0.5);

    let backoff = RetryPolicy::default().backoff.delay(1, 0.5);
    let parked: Vec<_> = decision.park.iter().map(|p| p.parking.clone()).collect();
    let waiting = |after| Parking::Waiting { after };
    assert_eq!(parked, [waiting(Duration::from_secs(4)), waiting(backoff)]);
}

#[test]
fn a_transport_that_answers_short_confirms_nothing_more() {
    let decision = run(&batch(&[None, None]), vec![Ok(())]);

    assert_eq!(decision.settled, [1]);
    assert_eq!(decision.unsettled, [2]);
}

#[test]
fn a_permanent_refusal_is_dead_at_once_and_skip_lets_the_key_go_on() {
    let batch = batch(&[Some("a"), Some("a")]);
    let results = || vec![Err(Failure::message("bad subject").permanently()), Ok(())];

    let blocked = run(&batch, results());
    let skipped = decide(&batch, results(), &RetryPolicy::default(), OnDead::SkipKey, 0.5);

    assert_eq!(blocked.park.iter().map(|p| p.parking.name()).collect::<Vec<_>>(), ["dead", "behind"]);
    assert!(blocked.settled.is_empty());
    assert_eq!(skipped.settled, [2]);
}

#[test]
fn rows_of_a_blocked_lane_wait_behind_it() {
    let lane = LaneKey { tenant: String::new(), key: "a".into() };
    let row = |position, key: &str| Row {
        position,
        shard: 0,
        envelope: Ok(Envelope { key: Some(key.into()), ..Envelope::default() }),
    };

    let batch = Batch::of_rows(vec![row(1, "a"), row(2, "b")], &Blocked::new(vec![lane]));

    assert_eq!(batch.slots.len(), 1);
    assert_eq!(batch.park.first().map(|p| p.position), Some(1));
}
