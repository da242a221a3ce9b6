//! Unsafe set-ups are recognised before anything is sent.

use std::time::Duration;

use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{Config, DiscardPolicy, RetentionPolicy, StorageType};
use oncebox_core::{Grade, Preflight, Subscriber};
use oncebox_transports::nats::{Nats, NatsOptions, Topology};

use super::scene::Scene;

const HORIZON: Duration = Duration::from_secs(86_400);

async fn grade(scene: &Scene, destination: &str) -> (Grade, String) {
    let inspections = scene.transport().inspect(&[destination.to_owned()], HORIZON).await.unwrap();
    let inspection = &inspections[0];
    let reasons: Vec<&str> = inspection.findings.iter().map(|finding| finding.reason.as_str()).collect();
    (inspection.grade(), reasons.join("; "))
}

#[tokio::test]
async fn every_unsafe_set_up_is_recognised_on_a_real_server() {
    let Some(scene) = Scene::fresh("unsafe set-ups").await else { return };
    let safe = || scene.config();
    let table: [(Grade, &str, Config); 9] = [
        (Grade::A, "", safe()),
        (Grade::D, "in memory", Config { storage: StorageType::Memory, ..safe() }),
        (Grade::C, "drops its oldest", Config { discard: DiscardPolicy::Old, max_messages: 3, ..safe() }),
        (Grade::C, "drops its oldest", Config { discard: DiscardPolicy::Old, max_bytes: 9_999, ..safe() }),
        (Grade::C, "drops messages after", Config { max_age: Duration::from_secs(3600), ..safe() }),
        (Grade::C, "the last 1 messages", Config { max_messages_per_subject: 1, ..safe() }),
        (Grade::F, "confirms nothing", Config { no_ack: true, ..safe() }),
        (Grade::F, "no durable one asks for", Config { retention: RetentionPolicy::Interest, ..safe() }),
        (Grade::B, "refuses messages above", Config { max_message_size: 1_000, ..safe() }),
    ];

    for (expected, reason, config) in table {
        scene.clean().await;
        scene.context.create_stream(&config).await.unwrap();
        let (grade, reasons) = grade(&scene, "bookings").await;
        assert_eq!(grade, expected, "{reasons}");
        assert!(reasons.contains(reason), "{reason}: {reasons}");
    }
    scene.clean().await;
}

#[tokio::test]
async fn a_missing_stream_a_sealed_one_and_no_subject_are_recognised() {
    let Some(scene) = Scene::fresh("missing and sealed").await else { return };
    let options = NatsOptions::from_url(&scene.url).unwrap().prefix(&scene.prefix);
    let declaring = Nats::new(options.topology(Topology::Declare));

    assert_eq!(grade(&scene, "nowhere").await.0, Grade::F);
    assert_eq!(grade(&scene, "a b").await.0, Grade::F);
    let made_later = declaring.inspect(&["nowhere".to_owned()], HORIZON).await.unwrap();
    assert_eq!(made_later[0].grade(), Grade::A);
    scene.context.update_stream(Config { sealed: true, ..scene.config() }).await.unwrap();
    let (grade, reasons) = grade(&scene, "bookings").await;
    assert_eq!(grade, Grade::F, "{reasons}");
    assert!(reasons.contains("sealed"), "{reasons}");
    scene.clean().await;
}

#[tokio::test]
async fn interest_is_safe_once_a_group_has_joined_and_careless_consumers_are_found() {
    let Some(scene) = Scene::fresh("consumers").await else { return };
    scene.clean().await;
    let interest = Config { retention: RetentionPolicy::Interest, ..scene.config() };
    let stream = scene.context.create_stream(interest).await.unwrap();

    drop(scene.transport().subscribe("bookings", "group").await.unwrap());
    assert_eq!(grade(&scene, "bookings").await, (Grade::A, String::new()));
    let careless = pull::Config {
        durable_name: Some("careless".into()),
        ack_policy: AckPolicy::None,
        ..pull::Config::default()
    };
    stream.create_consumer(careless).await.unwrap();
    let (grade, reasons) = grade(&scene, "bookings").await;

    assert_eq!(grade, Grade::F);
    assert!(reasons.contains("acknowledges nothing"), "{reasons}");
    scene.clean().await;
}
