//! Unsafe set-ups are recognised, with and without the management API.

use std::time::Duration;

use oncebox_conformance::sample::DESTINATION;
use oncebox_conformance::transport::exchange::join;
use oncebox_core::{Grade, Inspection, Preflight};
use oncebox_transports::rabbitmq::{RabbitMq, RabbitMqOptions, Topology};

use super::server::{Host, queue};

const HORIZON: Duration = Duration::from_secs(86_400);

async fn inspect(options: RabbitMqOptions, destination: &str) -> Inspection {
    let transport = RabbitMq::new(options).unwrap();
    transport.inspect(&[destination.to_owned()], HORIZON).await.unwrap().remove(0)
}

fn reasons(inspection: &Inspection) -> String {
    inspection.findings.iter().map(|finding| finding.reason.as_str()).collect::<Vec<_>>().join("; ")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_set_up_of_a_subscription_is_safe() {
    let Some(host) = Host::fresh("safe set-up").await else { return };
    drop(join(&host.transport(), "group").await);

    let by_api = inspect(host.options().management(&host.api), DESTINATION).await;
    let by_groups = inspect(host.options().groups(["group"]), DESTINATION).await;
    let blind = inspect(host.options(), DESTINATION).await;
    let checked = inspect(host.options().topology(Topology::Check).management(&host.api), DESTINATION).await;

    assert_eq!(by_api.grade(), Grade::A, "{}", reasons(&by_api));
    assert_eq!(by_groups.grade(), Grade::A, "{}", reasons(&by_groups));
    assert_eq!(checked.grade(), Grade::A, "{}", reasons(&checked));
    assert_eq!(blind.grade(), Grade::B, "{}", reasons(&blind));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsafe_queues_are_recognised() {
    let Some(host) = Host::fresh("unsafe queues").await else { return };
    let rows = [
        ("transient", r#"{"durable":false}"#, Grade::D, "not durable"),
        ("autodelete", r#"{"durable":true,"auto_delete":true}"#, Grade::F, "last consumer"),
        ("ttl", r#"{"durable":true,"arguments":{"x-message-ttl":60000}}"#, Grade::C, "drops messages after"),
        ("expires", r#"{"durable":true,"arguments":{"x-expires":60000}}"#, Grade::C, "unused"),
        ("drop", r#"{"durable":true,"arguments":{"x-max-length":10}}"#, Grade::C, "oldest"),
        ("bytes", r#"{"durable":true,"arguments":{"x-max-length-bytes":10}}"#, Grade::C, "oldest"),
        (
            "limit",
            r#"{"durable":true,"arguments":{"x-queue-type":"quorum","x-delivery-limit":5}}"#,
            Grade::C,
            "delivered 5 times",
        ),
        (
            "many",
            r#"{"durable":false,"auto_delete":true,"arguments":{"x-message-ttl":1,"x-max-length":1,"x-overflow":"drop-head"}}"#,
            Grade::F,
            "oldest",
        ),
        ("classic", r#"{"durable":true}"#, Grade::A, ""),
        (
            "reject",
            r#"{"durable":true,"arguments":{"x-max-length":10,"x-overflow":"reject-publish"}}"#,
            Grade::A,
            "",
        ),
    ];

    for (name, definition, grade, reason) in rows {
        host.change("PUT", &format!("queues/{name}"), definition).await;
        let destination = format!("/{name}");
        let by_amqp = inspect(host.options(), &destination).await;
        let by_api = inspect(host.options().management(&host.api), &destination).await;

        for seen in [by_amqp, by_api] {
            assert_eq!(seen.grade(), grade, "{name}: {}", reasons(&seen));
            assert!(reasons(&seen).contains(reason), "{name}: {}", reasons(&seen));
        }
    }
    let missing = inspect(host.options(), "/nowhere").await;
    assert_eq!((missing.grade(), reasons(&missing).as_str()), (Grade::F, "there is no queue nowhere"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unsafe_exchanges_are_recognised() {
    let Some(host) = Host::fresh("unsafe exchanges").await else { return };
    let rows = [
        ("transient", r#"{"type":"topic","durable":false}"#, Grade::D, "not durable"),
        ("autodelete", r#"{"type":"direct","durable":true,"auto_delete":true}"#, Grade::C, "last binding"),
        ("internal", r#"{"type":"fanout","durable":true,"internal":true}"#, Grade::F, "internal"),
    ];
    host.change("PUT", "queues/q", r#"{"durable":true}"#).await;

    for (name, definition, grade, reason) in rows {
        host.change("PUT", &format!("exchanges/{name}"), definition).await;
        host.change("POST", &format!("bindings/e/{name}/q/q"), r#"{"routing_key":"k"}"#).await;
        let destination = format!("{name}/k");
        let by_amqp = inspect(host.options(), &destination).await;
        let by_api = inspect(host.options().management(&host.api), &destination).await;

        for seen in [by_amqp, by_api] {
            assert_eq!(seen.grade(), grade, "{name}: {}", reasons(&seen));
            assert!(reasons(&seen).contains(reason), "{name}: {}", reasons(&seen));
        }
    }
    let missing = inspect(host.options(), "nowhere").await;
    assert_eq!((missing.grade(), reasons(&missing).as_str()), (Grade::F, "there is no exchange nowhere"));
    host.change("PUT", "exchanges/lonely", r#"{"type":"topic","durable":true}"#).await;
    let unbound = inspect(host.options().management(&host.api), "lonely").await;
    assert_eq!(unbound.grade(), Grade::F, "{}", reasons(&unbound));
    host.change("POST", "bindings/e/lonely/q/q", r#"{"routing_key":"eu.*"}"#).await;
    let elsewhere = inspect(host.options().management(&host.api), "lonely/us.new").await;
    assert_eq!(elsewhere.grade(), Grade::F, "{}", reasons(&elsewhere));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_policy_adds_is_seen_by_the_management_api() {
    let Some(host) = Host::fresh("policies").await else { return };
    drop(join(&host.transport(), "group").await);
    let policy = r#"{"pattern":"^bookings","definition":{"message-ttl":1000},"apply-to":"queues"}"#;
    host.change("PUT", "policies/short", policy).await;

    let seen = inspect(host.options().management(&host.api), DESTINATION).await;

    assert_eq!(seen.grade(), Grade::C, "{}", reasons(&seen));
    assert!(reasons(&seen).contains(&queue("group")));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_destination_that_cannot_be_looked_at_does_not_hide_the_others() {
    let Some(host) = Host::fresh("a name too long").await else { return };
    let long = "x".repeat(250);
    host.change("PUT", &format!("exchanges/{long}"), r#"{"type":"topic","durable":true}"#).await;
    host.change("PUT", "queues/q", r#"{"durable":true}"#).await;
    let transport = RabbitMq::new(host.options().groups(["a long group"])).unwrap();

    let seen = transport.inspect(&[long, "/q".to_owned()], HORIZON).await.unwrap();

    assert_eq!(seen[0].grade(), Grade::F, "{}", reasons(&seen[0]));
    assert!(reasons(&seen[0]).contains("AMQP takes 255"), "{}", reasons(&seen[0]));
    assert_eq!(seen[1].grade(), Grade::A, "{}", reasons(&seen[1]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_quorum_queue_without_a_limit_is_judged_by_the_version_of_the_server() {
    let Some(host) = Host::fresh("no limit").await else { return };
    host.change("PUT", "queues/q", r#"{"durable":true,"arguments":{"x-queue-type":"quorum"}}"#).await;
    let overview = host.api("GET", "/api/overview?columns=rabbitmq_version", "").await;
    let expected = if overview.contains(r#""rabbitmq_version":"3."#) { Grade::A } else { Grade::C };

    let by_amqp = inspect(host.options(), "/q").await;
    let by_api = inspect(host.options().management(&host.api), "/q").await;

    assert_eq!(by_amqp.grade(), Grade::B, "{}", reasons(&by_amqp));
    assert_eq!(by_api.grade(), expected, "{overview} {}", reasons(&by_api));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_look_changes_nothing() {
    let Some(host) = Host::fresh("a look").await else { return };
    host.change("PUT", "queues/q", r#"{"durable":true,"arguments":{"x-message-ttl":60000}}"#).await;
    let before = (host.change("GET", "queues", "").await, host.change("GET", "exchanges", "").await);

    for destination in ["/q", "/nowhere", "nowhere", "amq.topic"] {
        inspect(host.options().groups(["group"]), destination).await;
    }

    assert_eq!((host.change("GET", "queues", "").await, host.change("GET", "exchanges", "").await), before);
}
