use std::sync::atomic::{AtomicUsize, Ordering};

use oncebox_core::verdict::RetryPolicy;
use oncebox_core::{KeySelector, MissingId, Retention, Verdict};
use serde::{Deserialize, Serialize};

use super::*;
use crate::inbox::{Context, Handler, HandlerOptions};
use crate::memory::MemoryTx;

const SECOND: Duration = Duration::from_secs(1);

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Placed {
    order: u32,
}

impl Message for Placed {
    const NAME: &'static str = "placed";
    const DESTINATION: Option<&'static str> = Some("orders");
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Shipped {
    order: u32,
}

impl Message for Shipped {
    const NAME: &'static str = "shipped";
    const DESTINATION: Option<&'static str> = Some("shipments");
}

async fn ship(tx: &mut MemoryTx, placed: Placed) -> Result<(), HandlerError> {
    tx.append("shipped", placed.order.to_string());
    Ok(())
}

/// Ships and says so.
struct Announcer;

impl Handler<MemoryTx> for Announcer {
    type Message = Placed;

    fn key(&self) -> oncebox_core::HandlerKey {
        oncebox_core::HandlerKey::new("announce")
    }

    async fn handle(&self, cx: &mut Context<'_, MemoryTx>, placed: Placed) -> Result<(), HandlerError> {
        cx.put(&Shipped { order: placed.order }).await?;
        Ok(())
    }
}

/// Fails the first time.
struct Hesitant;

impl Handler<MemoryTx> for Hesitant {
    type Message = Placed;

    fn key(&self) -> oncebox_core::HandlerKey {
        oncebox_core::HandlerKey::new("ship")
    }

    async fn handle(&self, cx: &mut Context<'_, MemoryTx>, placed: Placed) -> Result<(), HandlerError> {
        cx.tx().append("shipped", placed.order.to_string());
        if cx.attempt() == 1 { Err(HandlerError::retry("not yet")) } else { Ok(()) }
    }
}

/// Fails as often as told before it ships.
fn failing(
    times: usize,
) -> impl Fn(&mut MemoryTx, Placed) -> std::future::Ready<Result<(), HandlerError>> + Send + Sync {
    let runs = AtomicUsize::new(0);
    move |tx, placed| {
        if runs.fetch_add(1, Ordering::SeqCst) < times {
            return std::future::ready(Err(HandlerError::retry("not yet")));
        }
        tx.append("shipped", placed.order.to_string());
        std::future::ready(Ok(()))
    }
}

/// Counts its runs where no transaction can take them back.
fn counting(
    runs: &Arc<AtomicUsize>,
) -> impl Fn(&mut MemoryTx, Placed) -> std::future::Ready<Result<(), HandlerError>> + Send + Sync + 'static {
    let runs = Arc::clone(runs);
    move |_, _| {
        runs.fetch_add(1, Ordering::SeqCst);
        std::future::ready(Ok(()))
    }
}

fn receiving(stage: Stage) -> Stage {
    stage.channel("orders", |inbox| inbox.on::<Placed, _>("ship", ship))
}

fn durable(stage: Stage) -> Stage {
    stage.channel("orders", |inbox| inbox.durable().on::<Placed, _>("ship", ship))
}

async fn shipped(stage: &Stage) -> Vec<String> {
    let mut rows = stage.store().rows("shipped").await;
    rows.sort_unstable();
    rows
}

fn foreign(id: &str, order: u32) -> Envelope {
    Envelope { source: "elsewhere".into(), ..Envelope::of(id, &Placed { order }).unwrap() }
}

#[tokio::test]
async fn one_thing_happens_in_a_step() {
    let mut stage = durable(Stage::memory());
    let id = stage.put(&Placed { order: 1 }).await;

    assert_eq!(stage.step().await, Some(Step::Relayed { messages: 1 }));
    let delivered = Step::Delivered { channel: "orders".into(), id: id.clone(), verdict: Verdict::Done };
    assert_eq!(stage.step().await, Some(delivered));
    assert!(stage.handled("ship").is_empty(), "it is stored, not handled");
    let worked = stage.step().await;
    assert!(matches!(&worked, Some(Step::Worked(worked)) if worked.id == id), "{worked:?}");

    assert_eq!(stage.step().await, None);
    assert_eq!(stage.handled("ship"), [id]);
}

#[tokio::test]
async fn what_handlers_put_goes_to_channels_here_and_to_others_elsewhere() {
    let announce = |inbox: InboxBuilder<MemoryStore>| inbox.durable().handler(Announcer);
    let mut stage = receiving(Stage::memory().service("shop")).channel("copies", announce);
    let mut routed = Stage::memory().channel("there", announce).route::<Placed>("there");

    stage.deliver(Envelope { destination: "copies".into(), ..foreign("a", 1) }).await;
    stage.deliver(foreign("b", 2)).await;
    stage.run_until_idle().await;
    routed.put(&Placed { order: 3 }).await;
    routed.run_until_idle().await;

    assert_eq!(stage.put_of::<Shipped>().await, [Shipped { order: 1 }]);
    assert_eq!((stage.handled("announce"), stage.handled("ship")), (vec!["a".into()], vec!["b".into()]));
    assert_eq!(routed.put_of::<Placed>().await, [Placed { order: 3 }]);
    assert_eq!(routed.put_of::<Shipped>().await, [Shipped { order: 3 }]);
}

#[tokio::test]
async fn a_retry_is_waited_for_and_a_dead_letter_is_shown_with_its_code() {
    for is_durable in [false, true] {
        let retry = RetryPolicy { max_attempts: Some(3), ..RetryPolicy::default() };
        let build = move |times| {
            let retry = retry.clone();
            Stage::memory().channel("orders", move |inbox| {
                let inbox = if is_durable { inbox.durable() } else { inbox };
                inbox.retry(retry.clone()).on::<Placed, _>("ship", failing(times))
            })
        };
        let (mut lucky, mut unlucky) = (build(2), build(3));
        let before = lucky.now();

        let id = lucky.put(&Placed { order: 1 }).await;
        lucky.run_until_idle().await;
        let dead = unlucky.put(&Placed { order: 2 }).await;
        unlucky.run_until_idle().await;

        lucky.assert_handled_once("ship", &id);
        assert!(lucky.now() > before && lucky.buried().await.is_empty());
        assert_eq!(unlucky.buried().await, [Buried::new("ship", dead, "attempts_exhausted")]);
        assert!(unlucky.handled("ship").is_empty() && shipped(&unlucky).await.is_empty());
    }
}

#[tokio::test]
async fn a_copy_is_skipped_in_either_mode() {
    for mode in [receiving, durable] {
        let mut stage = mode(Stage::memory());

        stage.duplicate(2);
        let ids = [stage.put(&Placed { order: 1 }).await, stage.put(&Placed { order: 2 }).await];
        stage.run_until_idle().await;

        assert_eq!((stage.handled("ship"), stage.skipped("ship")), (ids.to_vec(), ids.to_vec()));
        assert_eq!(shipped(&stage).await, ["1", "2"]);
    }
}

#[tokio::test]
async fn a_copy_finds_a_handler_that_cannot_tell_it_from_the_first() {
    let mut stage = Stage::memory().channel("orders", |inbox| {
        inbox.handler_with(
            crate::inbox::on::<Placed, _>(oncebox_core::HandlerKey::new("ship"), ship),
            |options| HandlerOptions {
                selector: KeySelector::IdempotencyKey,
                missing_id: MissingId::AllowUnkeyed,
                ..options
            },
        )
    });

    stage.duplicate(1);
    let id = stage.put(&Placed { order: 1 }).await;
    stage.run_until_idle().await;

    assert_eq!(shipped(&stage).await, ["1", "1"]);
    let text = panic_of(|| stage.assert_handled_once("ship", &id));
    assert!(text.contains("took effect 2 times"), "{text}");
}

#[tokio::test]
async fn a_seed_is_an_order_and_a_delayed_message_is_overtaken() {
    let order = async |seed| {
        let mut stage = receiving(Stage::memory());
        stage.reorder(seed);
        for n in 0..20 {
            stage.deliver(foreign(&format!("{n:02}"), n)).await;
        }
        stage.run_until_idle().await;
        stage.handled("ship")
    };
    let mut stage = receiving(Stage::memory());

    stage.delay(10 * SECOND);
    stage.deliver(foreign("late", 1)).await;
    stage.deliver(foreign("soon", 2)).await;
    while stage.step().await.is_some() {}
    let before = stage.handled("ship");
    stage.advance(10 * SECOND);
    while stage.step().await.is_some() {}

    assert_eq!((before, stage.handled("ship")), (vec!["soon".into()], vec!["soon".into(), "late".into()]));
    let drawn = order(7).await;
    assert!(!drawn.is_sorted() && drawn == order(7).await && drawn.len() == 20, "{drawn:?}");
}

#[tokio::test]
async fn a_good_handler_survives_death_anywhere() {
    for (mode, last) in [(receiving as fn(Stage) -> Stage, CrashPoint::C6), (durable, CrashPoint::D5)] {
        let reached = every_crash_point(|stage| async move {
            let mut stage = mode(stage).channel("again", |inbox| inbox.durable().handler(Announcer));
            let ids = [stage.put(&Placed { order: 1 }).await, stage.put(&Placed { order: 2 }).await];
            stage.deliver(Envelope { destination: "again".into(), ..foreign("f", 3) }).await;
            stage.run_until_idle().await;

            for id in &ids {
                stage.assert_handled_once("ship", id);
            }
            stage.assert_handled_once("announce", "f");
            assert_eq!(shipped(&stage).await, ["1", "2"]);
            assert_eq!(stage.put_of::<Shipped>().await, [Shipped { order: 3 }]);
            assert_eq!(stage.put_of::<Placed>().await.len(), 2);
            assert_eq!(stage.buried().await, []);
        })
        .await;

        assert!(reached.contains(&last) && reached.contains(&CrashPoint::R5), "{reached:?}");
    }
}

#[tokio::test]
async fn a_handler_that_fails_is_also_killed_before_its_failure_is_written() {
    let reached = every_crash_point(|stage| async move {
        let mut stage = stage.channel("orders", |inbox| inbox.durable().handler(Hesitant));
        let id = stage.put(&Placed { order: 1 }).await;
        stage.run_until_idle().await;

        stage.assert_handled_once("ship", &id);
        assert_eq!(shipped(&stage).await, ["1"]);
    })
    .await;

    assert_eq!(reached.last(), Some(&CrashPoint::D6));
}

#[tokio::test]
async fn an_effect_outside_of_the_transaction_is_found_with_the_point() {
    for (is_durable, point) in [(false, "dies at C3"), (true, "dies at D4")] {
        let scenario = move |stage: Stage| async move {
            let runs = Arc::new(AtomicUsize::new(0));
            let counted = Arc::clone(&runs);
            let mut stage = stage.channel("orders", move |inbox| {
                let inbox = if is_durable { inbox.durable() } else { inbox };
                inbox.on::<Placed, _>("count", counting(&counted))
            });
            stage.put(&Placed { order: 1 }).await;
            stage.run_until_idle().await;
            assert_eq!(runs.load(Ordering::SeqCst), 1, "runs");
        };

        let found = tokio::spawn(every_crash_point(scenario)).await.unwrap_err().into_panic();
        let text = found.downcast_ref::<String>().unwrap();

        assert!(text.contains(point) && text.contains("runs"), "{text}");
    }
}

#[tokio::test]
async fn a_scenario_that_leaves_points_out_proves_nothing() {
    let idle = |stage: Stage| async move { drop(durable(stage)) };
    let unheard = |stage: Stage| async move {
        let mut stage = durable(stage).route::<Placed>("elsewhere");
        stage.put(&Placed { order: 1 }).await;
        stage.run_until_idle().await;
    };
    let wrong = |stage: Stage| async move { assert_eq!(stage.handled("ship").len(), 1, "none") };

    let idle = tokio::spawn(every_crash_point(idle)).await.unwrap_err().into_panic();
    let unheard = tokio::spawn(every_crash_point(unheard)).await.unwrap_err().into_panic();
    let wrong = tokio::spawn(every_crash_point(wrong)).await.unwrap_err().into_panic();

    assert!(idle.downcast_ref::<&str>().unwrap().contains("reaches no crash point"));
    let text = unheard.downcast_ref::<String>().unwrap();
    assert!(text.contains("does not reach D1, D3, D4, D5") && text.contains("P1"), "{text}");
    let text = wrong.downcast_ref::<String>().unwrap();
    assert!(text.contains("even if no process dies") && text.contains("none"), "{text}");
}

#[tokio::test]
async fn a_process_that_dies_again_and_again_is_started_again_until_attempts_are_spent() {
    let mut stage = durable(Stage::memory());
    stage.crash_at(CrashPoint::D4, 3);
    let id = stage.put(&Placed { order: 1 }).await;
    stage.run_until_idle().await;
    let mut doomed = durable(Stage::memory());
    doomed.crash_at(CrashPoint::D4, 100);
    let dead = doomed.put(&Placed { order: 2 }).await;
    doomed.run_until_idle().await;

    stage.assert_handled_once("ship", &id);
    assert_eq!(doomed.buried().await, [Buried::new("ship", dead, "process_death")]);
}

#[tokio::test]
async fn what_is_leased_by_a_dead_process_waits_for_time_to_pass() {
    let mut stage = durable(Stage::memory());
    stage.crash_at(CrashPoint::D3, 1);
    stage.put(&Placed { order: 1 }).await;

    let mut steps = Vec::new();
    while let Some(step) = stage.step().await {
        steps.push(step);
    }
    let before = stage.handled("ship");
    stage.advance(61 * SECOND);
    let after = stage.step().await;

    assert_eq!(steps.last(), Some(&Step::Crashed(CrashPoint::D3)));
    assert!(before.is_empty() && matches!(after, Some(Step::Worked(_))), "{after:?}");
    assert_eq!(shipped(&stage).await, ["1"]);
}

#[tokio::test]
async fn a_stage_that_does_not_become_idle_says_what_is_pending() {
    let stubborn = |inbox: InboxBuilder<MemoryStore>| {
        inbox
            .durable()
            .retry(RetryPolicy { max_attempts: None, ..RetryPolicy::default() })
            .on::<Placed, _>("stubborn", failing(usize::MAX))
    };
    let mut stage = Stage::memory().channel("orders", stubborn);
    stage.put(&Placed { order: 1 }).await;

    let endless = tokio::spawn(async move { stage.run_until_idle().await }).await.unwrap_err().into_panic();

    let text = endless.downcast_ref::<String>().unwrap();
    assert!(text.contains("handler stubborn: 1 ready"), "{text}");
}

#[tokio::test]
async fn a_message_for_later_waits_until_then() {
    let mut stage = durable(Stage::memory());
    let due = stage.now().plus(3600 * SECOND);
    let outbox = stage.outbox();
    let mut tx = oncebox_core::Store::begin(stage.store()).await.unwrap();
    outbox.message(&Placed { order: 1 }).unwrap().due(due).put(&mut tx).await.unwrap();
    oncebox_core::Store::commit(stage.store(), tx).await.unwrap();

    stage.run_until_idle().await;
    let before = shipped(&stage).await;
    stage.advance(3600 * SECOND);
    stage.run_until_idle().await;

    assert!(before.is_empty());
    assert_eq!(shipped(&stage).await, ["1"]);
}

#[tokio::test]
async fn a_store_that_is_full_of_markers_handles_nothing_new_and_loses_nothing() {
    for mode in [receiving, durable] {
        let mut stage = mode(Stage::on(MemoryStore::new().marker_capacity(1)));
        let ids = [stage.put(&Placed { order: 1 }).await, stage.put(&Placed { order: 2 }).await];
        stage.duplicate(1);
        for _ in 0..8 {
            stage.step().await;
        }
        let full = (stage.handled("ship"), stage.skipped("ship"), shipped(&stage).await);

        let forget = oncebox_core::store::Purge::Markers { handler: "ship".into(), older_than: SECOND };
        stage.advance(3 * SECOND);
        let now = Some(stage.now());
        assert_eq!(stage.store().purge(&forget, 10, now).await.unwrap(), 1);
        stage.run_until_idle().await;

        assert_eq!(full, (vec![ids[0].clone()], vec![ids[0].clone()], vec!["1".to_owned()]));
        assert_eq!(stage.handled("ship"), ids);
        assert_eq!(stage.buried().await, []);
    }
}

fn panic_of(check: impl FnOnce()) -> String {
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(check)).unwrap_err();
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_setup_that_is_refused_says_why() {
    let twice = || {
        let both = |inbox: InboxBuilder<MemoryStore>| {
            inbox.on::<Placed, _>("ship", ship).on::<Placed, _>("ship", ship)
        };
        drop(Stage::memory().channel("orders", both));
    };

    let text = panic_of(twice);

    assert!(text.contains("channel orders") && text.contains("ship"), "{text}");
}

#[tokio::test]
async fn a_message_that_nobody_here_takes_is_refused() {
    let stage = receiving(Stage::memory());

    let nobody = tokio::spawn(async move {
        stage.deliver(Envelope { destination: "nowhere".into(), ..foreign("a", 1) }).await;
    });

    let text = nobody.await.unwrap_err().into_panic();
    assert!(text.downcast_ref::<String>().unwrap().contains("nobody subscribes to nowhere"));
}
