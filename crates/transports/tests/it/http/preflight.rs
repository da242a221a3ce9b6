//! What is found out before anything is posted.

use std::time::Duration;

use oncebox_conformance::server::free_port;
use oncebox_core::{Grade, Preflight};
use oncebox_transports::http::{Http, HttpOptions};

use super::server::Server;

const HORIZON: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn each_destination_is_graded_and_nothing_is_posted() {
    let server = Server::answering(200, &[]).await;
    let closed = format!("http://127.0.0.1:{}/hook", free_port());
    let options = HttpOptions::new()
        .destination("good", format!("{}/hook", server.url))
        .destination("closed", closed)
        .destination("far", "http://192.0.2.1:9/hook?token=hunter2")
        .allow_plain_http()
        .connect_timeout(Duration::from_secs(5));
    let http = Http::new(options).unwrap();
    let destinations = ["good", "closed", "unknown", "far"].map(String::from);

    let inspections = http.inspect(&destinations, HORIZON).await.unwrap();

    let grades: Vec<_> =
        inspections.iter().map(|found| (found.destination.as_str(), found.grade())).collect();
    assert_eq!(grades, [("good", Grade::A), ("closed", Grade::F), ("unknown", Grade::F), ("far", Grade::F)]);
    assert!(inspections[3].findings.iter().any(|found| found.reason.contains("plain http")));
    assert!(
        inspections.iter().flat_map(|found| &found.findings).all(|found| !found.reason.contains("hunter2"))
    );
    assert!(server.seen().is_empty());
}
