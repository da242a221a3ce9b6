//! What statements of the durable inbox walk through, however much there is.

use oncebox_core::Depot as _;
use oncebox_core::depot::{TakeRequest, Want};

use super::*;

/// The plan of a statement as the server would run it for any parameters.
async fn plan(store: &PostgresStore, schema: &str, text: &str, parameters: &str) -> String {
    let mut connection = store.pool().acquire().await.unwrap();
    let text = text.replace("oncebox.", &format!("{schema}."));
    let (types, values) = parameters.split_once('|').unwrap();
    let prepare = format!("SET plan_cache_mode = force_generic_plan; PREPARE p ({types}) AS {text}");
    connection.execute(sqlx::raw_sql(AssertSqlSafe(prepare))).await.unwrap();
    let explain = AssertSqlSafe(format!("EXPLAIN EXECUTE p ({values})"));
    let rows = connection.fetch_all(sqlx::raw_sql(explain)).await.unwrap();
    connection.execute("DEALLOCATE p; RESET plan_cache_mode").await.unwrap();
    rows.iter().map(|row| row.get::<String, _>(0) + "\n").collect()
}

#[tokio::test]
async fn what_is_done_is_never_walked_through() {
    on_tables("what_is_done_is_never_walked_through", |store, schema| async move {
        let fill = format!(
            "INSERT INTO {schema}.message (scope, channel, tenant, source, id, type, digest, received_at, attributes, \
             payload) SELECT '', 'c', '', 's', i::text, 't', '', now(), '{{}}', '' FROM generate_series(1, 20000) AS i; \
             INSERT INTO {schema}.delivery (message, scope, handler, tenant, key_source, key_id, digest, lane, state, \
             due_at, ended_at) SELECT number, '', 'h', '', source, id, '', id, \
             CASE WHEN number % 2 = 0 THEN 'ready' ELSE 'discarded' END, now(), now() FROM {schema}.message; \
             INSERT INTO {schema}.finished (number, message, scope, handler, tenant, key_source, key_id, digest, fence, \
             attempts, generation, history, ended_at) \
             SELECT number, number, '', 'h', '', source, id, '', 1, 1, 0, '[]', now() FROM {schema}.message; \
             ANALYZE {schema}.message; ANALYZE {schema}.delivery; ANALYZE {schema}.finished"
        );
        execute(&store, &fill).await;
        let taking = "text, text, text[], bigint[], bigint, bigint, bigint, timestamptz\
                      | '', 'w', '{h}', '{10}', 10, 1, 1, NULL";
        let finishing = "bigint, bigint, timestamptz, text, text, text, text, bytea, bytea, bigint, bigint\
                         | 1, 1, NULL, '', 'h', 's', 'i', '', NULL, 2, 2";
        let cases = [
            (include_str!("../../../src/postgres/sql/take.sql"), taking),
            (include_str!("../../../src/postgres/sql/take_suspects.sql"), taking),
            (include_str!("../../../src/postgres/sql/has_suspects.sql"), "text, text[], timestamptz | '', '{h}', NULL"),
            (include_str!("../../../src/postgres/sql/finish.sql"), finishing),
            (include_str!("../../../src/postgres/sql/finish_lane.sql"), finishing),
            (
                include_str!("../../../src/postgres/sql/finish_all.sql"),
                "bigint[], bigint[], timestamptz, text[], text[], text[], text[], bytea[], bytea[], bigint \
                 | '{1,2}', '{1,2}', NULL, '{}', '{h,h}', '{s,s}', '{a,b}', NULL, NULL, 2",
            ),
            (include_str!("../../../src/postgres/sql/status_handlers.sql"), "bigint | 100000"),
            (include_str!("../../../src/postgres/sql/park_orphans.sql"), "bigint, bigint, timestamptz | 1, 10, NULL"),
        ];

        for (text, parameters) in cases {
            let plan = plan(&store, &schema, text, parameters).await;

            let walks = |line: &&str| {
                line.contains("Seq Scan") && !line.contains("on marker") && !line.contains("on handler")
                    || line.contains("Bitmap")
            };
            assert_eq!(plan.lines().find(walks), None, "{plan}");
        }
    })
    .await;
}

#[tokio::test]
async fn a_run_that_died_is_found_before_a_long_backlog() {
    on_tables("a_run_that_died_is_found_before_a_long_backlog", |store, schema| async move {
        let fill = format!(
            "INSERT INTO {schema}.message (scope, channel, tenant, source, id, type, digest, received_at, attributes, \
             payload) SELECT '', 'c', '', 's', i::text, 't', '', now(), \
             '{{\"specversion\":\"1.0\",\"id\":\"1\",\"source\":\"s\",\"type\":\"t\"}}', '' \
             FROM generate_series(1, 5000) AS i; \
             INSERT INTO {schema}.delivery (message, scope, handler, tenant, key_source, key_id, digest, state, due_at) \
             SELECT number, '', 'h', '', source, id, '', 'ready', now() FROM {schema}.message"
        );
        execute(&store, &fill).await;
        let wants = [Want { handler: "h", limit: 100 }];
        let request = TakeRequest {
            scope: "",
            holder: "w",
            lease: Duration::from_secs(60),
            limit: 3,
            seats: 1,
            wants: &wants,
            suspects: false,
        };
        let taken = store.take(&request, None).await.unwrap();
        assert!(!store.has_suspects("", &wants, None).await.unwrap(), "all of them are in good hands");
        execute(&store, &format!("UPDATE {schema}.delivery SET lease_until = now() WHERE lease_until > now()")).await;

        let has_suspects = store.has_suspects("", &wants, None).await.unwrap();
        let suspects = store.take(&TakeRequest { suspects: true, ..request.clone() }, None).await.unwrap();
        let others = store.take(&request, None).await.unwrap();

        assert!(has_suspects);
        let numbers = |taken: &[oncebox_core::depot::Taken]| -> Vec<i64> {
            taken.iter().map(|taken| taken.ticket.number).collect()
        };
        assert_eq!((numbers(&suspects), suspects[0].deaths), (vec![taken[0].ticket.number], 1), "it had started");
        assert_eq!(numbers(&others)[..2], numbers(&taken)[1..], "these were only held");
    })
    .await;
}
