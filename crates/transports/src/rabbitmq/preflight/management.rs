//! The management API, for what AMQP does not show: bindings and policies.
//!
//! A request in a few lines instead of an HTTP client: the preflight asks some
//! small questions at the start, of a server in the same network.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::super::error::Trouble;
use super::judge::Facts;

/// The most that is read of an answer.
const MAX_ANSWER_BYTES: u64 = 32 << 20;
/// How far bindings from exchange to exchange are followed.
const MAX_HOPS: usize = 8;

/// The API of one server, looking at one virtual host.
pub(super) struct Management {
    address: String,
    authorization: String,
    host: String,
    limit: Duration,
}

/// What the server has, as far as it concerns destinations.
pub(super) struct Survey {
    exchanges: Vec<Value>,
    bindings: Vec<Value>,
    policies: Vec<Value>,
    nodes: usize,
    major_version: Option<u64>,
}

impl Management {
    pub(super) fn new(url: &str, virtual_host: &str, limit: Duration) -> Result<Self, Trouble> {
        let form = "the management API's address is not of the form http://user:password@host:port";
        let rest = url.strip_prefix("http://").ok_or_else(|| Trouble::config(form))?;
        let (user, address) =
            rest.trim_end_matches('/').rsplit_once('@').ok_or_else(|| Trouble::config(form))?;
        let authorization = base64(decoded(user).as_bytes());
        Ok(Self { address: address.to_owned(), authorization, host: encoded(virtual_host), limit })
    }

    pub(super) async fn survey(&self) -> Result<Survey, Trouble> {
        let host = &self.host;
        let mut policies = self.list(&format!("/api/policies/{host}")).await?;
        policies.extend(self.list(&format!("/api/operator-policies/{host}")).await?);
        let overview = self.get("/api/overview?columns=rabbitmq_version").await?.unwrap_or_default();
        Ok(Survey {
            exchanges: self
                .list(&format!("/api/exchanges/{host}?columns=name,type,durable,auto_delete,internal"))
                .await?,
            bindings: self.list(&format!("/api/bindings/{host}")).await?,
            policies,
            nodes: self.list("/api/nodes?columns=name").await?.len(),
            major_version: major(field(&overview, "rabbitmq_version")),
        })
    }

    /// What is known about a queue, its policies included; `None` if it is not there.
    pub(super) async fn queue(&self, name: &str, survey: &Survey) -> Result<Option<Facts>, Trouble> {
        let path = format!("/api/queues/{}/{}", self.host, encoded(name));
        let Some(queue) = self.get(&path).await? else { return Ok(None) };
        let mut arguments = survey.policy_arguments(name);
        if let Some(policy) = queue.get("effective_policy_definition").and_then(Value::as_object) {
            arguments.extend(policy.iter().map(|(name, value)| (format!("x-{name}"), spoken(value))));
        }
        let own = queue.get("arguments").and_then(Value::as_object);
        arguments.extend(own.into_iter().flatten().map(|(name, value)| (name.clone(), spoken(value))));
        if let Some(kind) = queue.get("type").and_then(Value::as_str) {
            arguments.insert("x-queue-type".into(), kind.to_owned());
        }
        Ok(Some(Facts {
            name: name.to_owned(),
            is_transient: !is(&queue, "durable"),
            is_auto_delete: is(&queue, "auto_delete"),
            is_exclusive: is(&queue, "exclusive"),
            is_internal: false,
            arguments,
            nodes: survey.nodes,
            major_version: survey.major_version,
        }))
    }

    async fn list(&self, path: &str) -> Result<Vec<Value>, Trouble> {
        match self.get(path).await? {
            Some(Value::Array(items)) => Ok(items),
            _ => Err(Trouble::config("the management API does not know the virtual host")),
        }
    }

    async fn get(&self, path: &str) -> Result<Option<Value>, Trouble> {
        let answer = timeout(self.limit, self.exchange(path)).await;
        let answer = answer.map_err(|_elapsed| Trouble::unavailable("the management API does not answer"))?;
        let answer = answer.map_err(|error| Trouble::unavailable(format!("the management API: {error}")))?;
        let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((&answer, ""));
        match head.split(' ').nth(1) {
            Some("200") => serde_json::from_str(body)
                .map(Some)
                .map_err(|_not_json| Trouble::unavailable("the management API's answer was cut off")),
            Some("404") => Ok(None),
            Some("401" | "403") => Err(Trouble::config("the management API refuses the user")),
            status => Err(Trouble::unavailable(format!(
                "the management API answers {}",
                status.unwrap_or("nonsense")
            ))),
        }
    }

    async fn exchange(&self, path: &str) -> std::io::Result<String> {
        let mut stream = TcpStream::connect(&self.address).await?;
        let (address, authorization) = (&self.address, &self.authorization);
        let request =
            format!("GET {path} HTTP/1.0\r\nHost: {address}\r\nAuthorization: Basic {authorization}\r\n\r\n");
        stream.write_all(request.as_bytes()).await?;
        let mut answer = Vec::new();
        stream.take(MAX_ANSWER_BYTES).read_to_end(&mut answer).await?;
        Ok(String::from_utf8_lossy(&answer).into_owned())
    }
}

impl Survey {
    /// What is known about an exchange; `None` if it is not there.
    pub(super) fn exchange(&self, name: &str) -> Option<Facts> {
        let found = self.exchanges.iter().find(|exchange| field(exchange, "name") == name)?;
        Some(Facts {
            name: name.to_owned(),
            is_transient: !is(found, "durable"),
            is_auto_delete: is(found, "auto_delete"),
            is_internal: is(found, "internal"),
            ..Facts::default()
        })
    }

    /// The queues bound to an exchange, directly or by way of others; those a
    /// message with `key` reaches, if that is known.
    pub(super) fn queues(&self, exchange: &str, key: Option<&str>) -> Vec<String> {
        let (mut exchanges, mut queues) = (vec![exchange.to_owned()], Vec::new());
        let mut next = 0;
        while let Some(source) = exchanges.get(next).cloned().filter(|_| next < MAX_HOPS) {
            next += 1;
            let kind = self.exchanges.iter().find(|exchange| field(exchange, "name") == source);
            let kind = kind.map_or("", |exchange| field(exchange, "type"));
            let passes = |binding: &&Value| {
                field(binding, "source") == source
                    && key.is_none_or(|key| leads(kind, field(binding, "routing_key"), key))
            };
            for binding in self.bindings.iter().filter(passes) {
                let to = field(binding, "destination").to_owned();
                let found =
                    if field(binding, "destination_type") == "queue" { &mut queues } else { &mut exchanges };
                if !found.contains(&to) {
                    found.push(to);
                }
            }
        }
        queues
    }

    /// What policies ask of a queue, as arguments. A pattern that is more than a
    /// name counts as one that fits: a finding too many does no harm.
    fn policy_arguments(&self, queue: &str) -> BTreeMap<String, String> {
        let mut arguments = BTreeMap::new();
        for policy in self.policies.iter().filter(|policy| fits(field(policy, "pattern"), queue)) {
            if field(policy, "apply-to") == "exchanges" {
                continue;
            }
            let definition = policy.get("definition").and_then(Value::as_object);
            let definition = definition.into_iter().flatten();
            arguments.extend(definition.map(|(name, value)| (format!("x-{name}"), spoken(value))));
        }
        arguments
    }
}

/// Whether an exchange of this kind passes a message on by a binding.
fn leads(kind: &str, binding: &str, key: &str) -> bool {
    match kind {
        "direct" => binding == key,
        "topic" => {
            let (pattern, words): (Vec<&str>, Vec<&str>) =
                (binding.split('.').collect(), key.split('.').collect());
            matches(&pattern, &words)
        }
        _ => true,
    }
}

fn matches(pattern: &[&str], words: &[&str]) -> bool {
    match (pattern.split_first(), words.split_first()) {
        (None, None) => true,
        (Some((&"#", rest)), _) => {
            matches(rest, words) || words.split_first().is_some_and(|(_, w)| matches(pattern, w))
        }
        (Some((first, pattern)), Some((word, words))) => {
            (*first == "*" || first == word) && matches(pattern, words)
        }
        _ => false,
    }
}

fn fits(pattern: &str, name: &str) -> bool {
    let literal = pattern.trim_start_matches('^').trim_end_matches('$');
    if literal.contains(['.', '*', '+', '?', '(', '[', '|', '\\']) {
        return true;
    }
    match (pattern.starts_with('^'), pattern.ends_with('$')) {
        (true, true) => name == literal,
        (true, false) => name.starts_with(literal),
        (false, true) => name.ends_with(literal),
        (false, false) => name.contains(literal),
    }
}

fn major(version: &str) -> Option<u64> {
    version.split('.').next()?.parse().ok()
}

fn field<'v>(value: &'v Value, name: &str) -> &'v str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

fn is(value: &Value, name: &str) -> bool {
    // Columns an old server does not know are left out.
    value.get(name).and_then(Value::as_bool).unwrap_or(name == "durable")
}

fn spoken(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

fn encoded(segment: &str) -> String {
    let mut text = String::new();
    for byte in segment.bytes() {
        match byte {
            b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' => {
                text.push(char::from(byte))
            }
            _ => _ = write!(text, "%{byte:02X}"),
        }
    }
    text
}

fn decoded(user: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = user.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: u8| char::from(byte).to_digit(16).and_then(|digit| u8::try_from(digit).ok());
        let mut ahead = rest.clone();
        let pair = (byte == b'%').then(|| Some(hex(ahead.next()?)? << 4 | hex(ahead.next()?)?)).flatten();
        if pair.is_some() {
            rest = ahead;
        }
        bytes.push(pair.unwrap_or(byte));
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for chunk in bytes.chunks(3) {
        let bits = chunk.iter().fold(0_usize, |bits, byte| bits << 8 | usize::from(*byte))
            << (8 * (3 - chunk.len()));
        for place in 0..4 {
            let letter = LETTERS.get(bits >> (18 - 6 * place) & 63).copied().unwrap_or(b'=');
            text.push(if place <= chunk.len() { char::from(letter) } else { '=' });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_passwords_are_written_as_the_protocol_wants_them() {
        assert_eq!(["", "f", "fo", "foo"].map(|text| base64(text.as_bytes())), ["", "Zg==", "Zm8=", "Zm9v"]);
        assert_eq!(encoded("/a b#é"), "%2Fa%20b%23%C3%A9");
        assert_eq!(decoded("us%65r:p%40ss%"), "user:p@ss%");
    }

    #[test]
    fn an_address_that_is_wrong_is_not_quoted() {
        for wrong in ["https://user:hunter2@host", "http://hunter2", "hunter2"] {
            let trouble = Management::new(wrong, "/", Duration::from_secs(1)).err().unwrap();
            assert!(!trouble.text.contains("hunter2"));
        }
    }

    #[test]
    fn a_pattern_fits_by_name_and_if_in_doubt() {
        let rows = [
            ("^orders$", true),
            ("^ord", true),
            ("ers$", true),
            ("rde", true),
            ("^o.*x$", true),
            ("^x", false),
        ];

        for (pattern, expected) in rows {
            assert_eq!(fits(pattern, "orders"), expected, "{pattern}");
        }
    }

    #[test]
    fn a_version_is_read_as_far_as_it_matters() {
        let versions = ["3.10.8", "4.1.0-beta.2", "", "unknown"];

        assert_eq!(versions.map(major), [Some(3), Some(4), None, None]);
    }

    #[test]
    fn bindings_are_followed_from_exchange_to_exchange_and_not_in_circles() {
        let binding = |source: &str, kind: &str, to: &str| serde_json::json!({"source": source, "destination_type": kind, "destination": to});
        let bindings = vec![
            binding("a", "exchange", "b"),
            binding("b", "exchange", "a"),
            binding("b", "queue", "q1"),
            binding("a", "queue", "q2"),
            binding("c", "queue", "q3"),
        ];
        let survey = Survey { exchanges: vec![], bindings, policies: vec![], nodes: 1, major_version: None };

        assert_eq!(survey.queues("a", None), ["q2", "q1"]);
        assert!(survey.queues("nowhere", None).is_empty());
    }

    #[test]
    fn a_binding_leads_where_its_exchange_says() {
        let rows = [
            ("topic", "#", "a.b", true),
            ("topic", "a.*", "a.b", true),
            ("topic", "a.*", "a.b.c", false),
            ("topic", "a.#", "a", true),
            ("topic", "#.c", "a.b.c", true),
            ("topic", "a.b", "a.c", false),
            ("direct", "a.*", "a.b", false),
            ("direct", "a.b", "a.b", true),
            ("fanout", "", "a.b", true),
        ];

        for (kind, binding, key, expected) in rows {
            assert_eq!(leads(kind, binding, key), expected, "{kind} {binding} {key}");
        }
    }
}
