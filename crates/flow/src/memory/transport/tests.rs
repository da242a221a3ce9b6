use oncebox_core::transport::Class;

use super::*;

fn envelope(id: &str, key: &str) -> Envelope {
    let key = (!key.is_empty()).then(|| key.to_owned());
    Envelope {
        id: id.into(),
        source: "shop".into(),
        destination: "orders".into(),
        key,
        ..Envelope::default()
    }
}

async fn feed(transport: &MemoryTransport, group: &str) -> MemoryFeed {
    transport.subscribe("orders", group).await.unwrap()
}

async fn next(feed: &mut MemoryFeed) -> Delivery<MemoryAck> {
    feed.next().await.unwrap().unwrap()
}

fn publishing(
    transport: &MemoryTransport,
    batch: Vec<Envelope>,
) -> tokio::task::JoinHandle<Vec<Result<(), Failure>>> {
    let transport = transport.clone();
    tokio::spawn(async move { transport.publish(&batch).await })
}

async fn is_idle(feed: &mut MemoryFeed) -> bool {
    tokio::time::timeout(Duration::ZERO, feed.next()).await.is_err()
}

fn failure(results: &[Result<(), Failure>]) -> (Class, &str) {
    let failure = results[0].as_ref().unwrap_err();
    (failure.class, failure.reason.as_str())
}

#[tokio::test(start_paused = true)]
async fn a_message_is_confirmed_when_every_group_has_acknowledged_it() {
    let transport = MemoryTransport::new();
    let (mut one, mut two) = (feed(&transport, "one").await, feed(&transport, "two").await);
    let publishing = publishing(&transport, vec![envelope("1", "")]);

    next(&mut one).await.ack.ack().await.unwrap();
    tokio::task::yield_now().await;
    assert!(!publishing.is_finished());
    next(&mut two).await.ack.ack().await.unwrap();

    assert_eq!(publishing.await.unwrap(), [Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn a_publish_of_a_message_that_is_under_way_joins_it() {
    let transport = MemoryTransport::new();
    let mut feed = feed(&transport, "g").await;
    let timed_out = publishing(&transport, vec![envelope("1", "")]);
    let delivery = next(&mut feed).await;
    assert_eq!(failure(&timed_out.await.unwrap()), (Class::Pending, "not acknowledged yet"));

    let again = publishing(&transport, vec![envelope("1", "")]);
    tokio::task::yield_now().await;
    delivery.ack.ack().await.unwrap();

    assert_eq!(again.await.unwrap(), [Ok(())]);
    assert!(is_idle(&mut feed).await, "no copy was queued");
}

#[tokio::test(start_paused = true)]
async fn an_ack_nobody_waited_for_confirms_the_next_publish() {
    let transport = MemoryTransport::new();
    let mut feed = feed(&transport, "g").await;
    let timed_out = publishing(&transport, vec![envelope("1", "")]);
    let delivery = next(&mut feed).await;
    assert_eq!(failure(&timed_out.await.unwrap()).0, Class::Pending);
    delivery.ack.ack().await.unwrap();

    let again = transport.publish(&[envelope("1", "")]).await;

    assert_eq!(again, [Ok(())]);
    assert!(is_idle(&mut feed).await, "it was not delivered again");
}

#[tokio::test(start_paused = true)]
async fn on_enqueue_confirms_at_once_and_queues_copies() {
    let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
    let mut feed = feed(&transport, "g").await;

    assert_eq!(transport.publish(&[envelope("1", ""), envelope("1", "")]).await, [Ok(()), Ok(())]);

    let first = next(&mut feed).await;
    let second = next(&mut feed).await;
    assert_eq!(first.envelope.id, second.envelope.id);
}

#[tokio::test(start_paused = true)]
async fn a_nack_delays_its_key_and_counts_only_if_spent() {
    let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
    let mut feed = feed(&transport, "g").await;
    transport.publish(&[envelope("a1", "a"), envelope("a2", "a"), envelope("b1", "b")]).await;
    let start = Instant::now();

    next(&mut feed).await.ack.nack(Duration::from_secs(5), true).await.unwrap();
    let other = next(&mut feed).await;
    assert_eq!(other.envelope.id, "b1");
    let again = next(&mut feed).await;
    assert_eq!((again.envelope.id.as_str(), again.attempt), ("a1", 2));
    assert_eq!(start.elapsed().as_secs(), 5);

    again.ack.nack(Duration::ZERO, false).await.unwrap();
    assert_eq!(next(&mut feed).await.attempt, 2);
}

#[tokio::test(start_paused = true)]
async fn a_dropped_answer_means_redelivery_even_without_its_feed() {
    let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
    let mut first = feed(&transport, "g").await;
    let mut second = feed(&transport, "g").await;
    transport.publish(&[envelope("1", "")]).await;
    let delivery = next(&mut first).await;

    drop(first);
    assert!(is_idle(&mut second).await, "it is still in flight");
    drop(delivery);

    let again = next(&mut second).await;
    assert_eq!(again.attempt, 2);
    again.ack.ack().await.unwrap();
    assert!(is_idle(&mut second).await);
}

#[tokio::test(start_paused = true)]
async fn a_sleeping_feed_takes_over_the_delay_of_one_that_was_dropped() {
    let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue);
    let (mut busy, mut idle) = (feed(&transport, "g").await, feed(&transport, "g").await);
    transport.publish(&[envelope("1", "")]).await;
    let delivery = next(&mut busy).await;
    let waiting = tokio::spawn(async move { next(&mut idle).await.attempt });
    tokio::task::yield_now().await;

    delivery.ack.nack(Duration::from_secs(3), true).await.unwrap();
    assert!(is_idle(&mut busy).await);
    drop(busy);

    assert_eq!(waiting.await.unwrap(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_full_queue_refuses_the_rest_of_its_keys() {
    let transport = MemoryTransport::new().confirm(Confirm::OnEnqueue).capacity(1);
    let mut feed = feed(&transport, "g").await;
    let elsewhere = Envelope { destination: "stock".into(), ..envelope("3", "k") };
    let _stock = transport.subscribe("stock", "g").await.unwrap();

    let results = transport.publish(&[envelope("1", ""), envelope("2", "k"), elsewhere]).await;

    assert_eq!(results[0], Ok(()));
    assert_eq!(failure(&results[1..]), (Class::Destination, "the queue of g on orders is full"));
    assert_eq!(failure(&results[2..]).0, Class::Destination, "order goes across destinations");
    next(&mut feed).await.ack.ack().await.unwrap();
    assert_eq!(transport.publish(&[envelope("2", "k")]).await, [Ok(())]);
}

#[tokio::test(start_paused = true)]
async fn without_subscribers_or_when_down_or_closed_the_destination_is_at_fault() {
    let transport = MemoryTransport::new();
    let batch = [envelope("1", "")];

    let nobody = transport.publish(&batch).await;
    let mut feed = feed(&transport, "g").await;
    transport.set_down(true);
    let down = transport.publish(&batch).await;
    transport.set_down(false);
    let waiting = tokio::spawn(async move { feed.next().await.unwrap().is_none() });
    tokio::task::yield_now().await;
    transport.close();
    let closed = transport.publish(&batch).await;

    assert_eq!(failure(&nobody), (Class::Destination, "nobody subscribes to orders"));
    assert_eq!(failure(&down), (Class::Destination, "the transport is down"));
    assert_eq!(failure(&closed), (Class::Destination, "the transport is closed"));
    assert!(waiting.await.unwrap(), "feeds end");
    assert_eq!(transport.subscribe("orders", "g").await.unwrap_err().kind(), Kind::Unavailable);
}

#[tokio::test(start_paused = true)]
async fn a_duplicated_delivery_arrives_beside_its_original() {
    let transport = MemoryTransport::new();
    let mut feed = feed(&transport, "g").await;
    transport.duplicate_next(1);
    let publishing = publishing(&transport, vec![envelope("1", "k")]);

    let original = next(&mut feed).await;
    let copy = next(&mut feed).await;
    assert_eq!(original.envelope, copy.envelope);
    copy.ack.ack().await.unwrap();
    tokio::task::yield_now().await;
    assert!(!publishing.is_finished(), "a copy confirms nothing");
    original.ack.ack().await.unwrap();

    assert_eq!(publishing.await.unwrap(), [Ok(())]);
    assert!(is_idle(&mut feed).await);
}

#[tokio::test(start_paused = true)]
async fn a_lost_confirm_leaves_the_message_queued() {
    let transport = MemoryTransport::new();
    let mut feed = feed(&transport, "g").await;
    transport.lose_confirms(1);

    let lost = transport.publish(&[envelope("1", "")]).await;

    assert_eq!(failure(&lost), (Class::Unknown, "confirm lost"));
    next(&mut feed).await.ack.ack().await.unwrap();
    let again = publishing(&transport, vec![envelope("1", "")]);
    next(&mut feed).await.ack.ack().await.unwrap();
    assert_eq!(again.await.unwrap(), [Ok(())]);
}

#[tokio::test]
async fn many_members_share_many_messages_and_keep_each_key_in_order() {
    let transport = MemoryTransport::new().capacity(5_000).confirm_timeout(Duration::from_secs(60));
    let seen: Arc<Mutex<HashMap<String, Vec<u32>>>> = Arc::default();
    for _ in 0..4 {
        let (mut feed, seen) = (feed(&transport, "g").await, Arc::clone(&seen));
        tokio::spawn(async move {
            while let Some(delivery) = feed.next().await.unwrap() {
                let key = delivery.envelope.key.clone().unwrap();
                lock(&seen).entry(key).or_default().push(delivery.envelope.id.parse().unwrap());
                tokio::task::yield_now().await;
                delivery.ack.ack().await.unwrap();
            }
        });
    }
    let batch: Vec<_> = (0..5_000).map(|n| envelope(&n.to_string(), &(n % 7).to_string())).collect();

    let results = transport.publish(&batch).await;

    assert!(results.iter().all(Result::is_ok));
    let seen = lock(&seen);
    assert_eq!(seen.values().map(Vec::len).sum::<usize>(), 5_000);
    assert!(seen.values().all(|ids| ids.is_sorted()));
}
