//! What of a JSON body is not compared. Read once, as it is asked about by every request.

use super::json::{MAX_DEPTH, quoted};
use crate::error::{Error, Kind, Result};

/// Parts that are left out of the form of a JSON text.
#[derive(Clone, Debug, Default)]
pub struct Excluded {
    /// None if there is nothing to look for.
    top: Option<Part>,
}

/// What is excluded of a value, or below it.
#[derive(Clone, Debug, Default)]
pub(super) struct Part {
    /// The member that it is, as it stands in a form.
    name: Vec<u8>,
    /// The element that it is, if that is a number.
    index: Option<usize>,
    is_excluded: bool,
    /// Members of the top that are excluded, in any case.
    names: Vec<Vec<u8>>,
    below: Vec<Self>,
}

impl Excluded {
    /// Names of top-level members, in any case; and, if they begin with `/`, pointers (RFC 6901) to a member or an
    /// element at any depth.
    ///
    /// # Errors
    /// [`Kind::Config`] with what is no pointer.
    pub fn new(entries: &[String]) -> Result<Self> {
        let mut top = Part::default();
        for entry in entries {
            match entry.strip_prefix('/') {
                None => top.names.push(quoted(entry)),
                Some(path) => {
                    let refuse = |why: &str| {
                        let text = format!("gate: excluded: {entry:?} is no JSON pointer: {why}");
                        Error::new(Kind::Config, text)
                    };
                    let path: Option<Vec<String>> = path.split('/').map(unescaped).collect();
                    let path = path.ok_or_else(|| refuse("~ is written ~0, and / in a name ~1"))?;
                    if path.len() > MAX_DEPTH {
                        return Err(refuse("nothing that deep is looked at"));
                    }
                    top.exclude(&path);
                }
            }
        }
        Ok(Self { top: Some(top).filter(|_| !entries.is_empty()) })
    }

    pub(super) const fn top(&self) -> Option<&Part> {
        self.top.as_ref()
    }
}

impl Part {
    fn exclude(&mut self, path: &[String]) {
        let [first, rest @ ..] = path else {
            self.is_excluded = true;
            return;
        };
        let name = quoted(first);
        if let Some(part) = self.below.iter_mut().find(|part| part.name == name) {
            return part.exclude(rest);
        }
        let mut part = Self { name, index: index(first), ..Self::default() };
        part.exclude(rest);
        self.below.push(part);
    }

    /// Whether it can matter what a value below it is called.
    pub(super) const fn has_below(&self) -> bool {
        !self.below.is_empty()
    }

    /// The member of this name, which has its quotes.
    pub(super) fn member(&self, name: &[u8]) -> Option<&Self> {
        self.below.iter().find(|part| part.name == name)
    }

    pub(super) fn element(&self, index: usize) -> Option<&Self> {
        self.below.iter().find(|part| part.index == Some(index))
    }

    pub(super) const fn is_excluded(&self) -> bool {
        self.is_excluded
    }

    /// Whether the member of this name, which has its quotes, is left out.
    pub(super) fn leaves_out(&self, name: &[u8]) -> bool {
        self.names.iter().any(|excluded| excluded.eq_ignore_ascii_case(name))
            || self.member(name).is_some_and(Self::is_excluded)
    }
}

/// A part of a pointer as it stands there; `None` if a `~` stands for nothing.
fn unescaped(text: &str) -> Option<String> {
    let mut pieces = text.split('~');
    let mut name = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let (character, rest) = match piece.strip_prefix('0') {
            Some(rest) => ('~', rest),
            None => ('/', piece.strip_prefix('1')?),
        };
        name.push(character);
        name.push_str(rest);
    }
    Some(name)
}

/// The number of an element: digits, without a zero before them.
fn index(name: &str) -> Option<usize> {
    let is_plain = name.bytes().all(|byte| byte.is_ascii_digit()) && (name == "0" || !name.starts_with('0'));
    name.parse().ok().filter(|_| is_plain)
}

#[cfg(test)]
mod tests {
    use super::super::json::canonical;
    use super::*;

    fn form(entries: &[&str], text: &str) -> Option<Vec<u8>> {
        let entries: Vec<_> = entries.iter().map(|entry| (*entry).to_owned()).collect();
        canonical(text.as_bytes(), &Excluded::new(&entries).unwrap())
    }

    #[track_caller]
    fn same(entry: &str, one: &str, other: &str) {
        assert_eq!(form(&[entry], one), form(&[entry], other), "{entry}");
        assert!(form(&[entry], one).is_some(), "{entry}");
    }

    #[track_caller]
    fn differ(entry: &str, one: &str, other: &str) {
        assert_ne!(form(&[entry], one), form(&[entry], other), "{entry}");
    }

    #[test]
    fn names_are_left_out_at_the_top_only_and_in_any_case() {
        same("traceId", r#"{"a":1,"TraceID":"x"}"#, r#"{"a":1}"#);
        differ("traceId", r#"{"a":{"traceId":1}}"#, r#"{"a":{}}"#);
        assert_eq!(form(&["traceId"], r#"{"traceId":1,"traceId":2}"#), None);
    }

    #[test]
    fn pointers_lead_to_members_at_any_depth_in_their_case() {
        let pointer = "/meta/trace/id";
        same(pointer, r#"{"a":1,"meta":{"trace":{"id":1,"b":2}}}"#, r#"{"meta":{"trace":{"b":2}},"a":1}"#);
        same(pointer, r#"{"meta":{"trace":{"id":{"deep":[1]}}}}"#, r#"{ "meta" : { "trace" : { } } }"#);
        differ(pointer, r#"{"meta":{"trace":{"Id":1}}}"#, r#"{"meta":{"trace":{}}}"#);
        differ(pointer, r#"{"id":1,"meta":{"id":1,"trace":{}}}"#, r#"{"meta":{"trace":{}}}"#);
        differ(pointer, r#"{"meta":{"trace":{"id":1}}}"#, r#"{"meta":{}}"#);
        same("/a", r#"{"a":1,"A":1}"#, r#"{"A":1}"#);
        differ("/a", r#"{"A":1}"#, "{}");
    }

    #[test]
    fn an_element_that_is_left_out_leaves_its_place() {
        same("/1", "[1,2,3]", r#"[1, {"x":[]} ,3]"#);
        differ("/1", "[1,2,3]", "[1,3]");
        differ("/1", "[1,2]", "[1]");
        differ("/0", "[1]", "[]");
        differ("/1", "[1,2,3]", "[1,2,4]");
        differ("/1", "[1,null]", "[null,1]");
        same("/items/1/at", r#"{"items":[{"at":1},{"at":2}]}"#, r#"{"items":[{"at":1},{"at":3}]}"#);
        differ("/items/1/at", r#"{"items":[{"at":1},{"at":2}]}"#, r#"{"items":[{"at":2},{"at":2}]}"#);
        same("/0/0", "[ [ 1 , 2 ] ]", "[[3,2]]");
    }

    /// What stands for an element in an array is a name in an object.
    #[test]
    fn numbers_are_names_of_members_too_and_nothing_else_is_special() {
        same("/0", r#"{"0":1,"b":2}"#, r#"{"b":2}"#);
        for (pointer, text) in [("/-", "[1,2]"), ("/01", "[1,2]"), ("/+1", "[1,2]"), ("/*", "[1,2]")] {
            differ(pointer, text, "[1,3]");
            differ(pointer, "[1,3,4]", text);
        }
        same("/-", r#"{"-":1}"#, "{}");
        same("/01", r#"{"01":1}"#, "{}");
        differ("/18446744073709551616", "[1]", "[2]");
    }

    #[test]
    fn escapes_stand_for_a_slash_and_a_tilde() {
        same("/a~1b", r#"{"a/b":1}"#, "{}");
        same("/a~1b", r#"{"a\/b":1}"#, "{}");
        same("/m~0n", r#"{"m~n":1}"#, "{}");
        same("/~01", r#"{"~1":1}"#, "{}");
        differ("/~01", r#"{"/":1}"#, "{}");
        same("/", r#"{"":1}"#, "{}");
        same("/a/", r#"{"a":{"":1}}"#, r#"{"a":{}}"#);
        same("/é\"\n", r#"{"\u00e9\u0022\n":1}"#, "{}");
    }

    #[test]
    fn several_may_share_their_way_with_names_beside_them() {
        let entries = ["Time", "/a/b", "/a/c/0", "/a/c", "/a/b/d"];

        let one = form(&entries, r#"{"time":1,"a":{"b":{"d":1},"c":[1],"e":1}}"#);

        assert_eq!(one, form(&[], r#"{"a":{"e":1}}"#));
        assert_eq!(form(&entries, r#"{"a":{"time":1}}"#), form(&[], r#"{"a":{"time":1}}"#));
    }

    #[test]
    fn what_leads_nowhere_changes_nothing() {
        for text in ["[1,[2,{\"b\":3}]]", "{\"a\":1,\"b\":[1]}", "1", "\"a\"", "{}", "[]"] {
            assert_eq!(form(&["/x/y", "/7"], text), form(&[], text), "{text}");
        }
    }

    #[test]
    fn what_is_left_out_must_be_json_that_says_one_thing() {
        for text in [r#"{"a":}"#, r#"{"a":{"b":1,"b":2}}"#, r#"{"a":1,"a":2}"#, r#"{"a":[1,]}"#] {
            assert_eq!(form(&["/a", "/a/0"], text), None, "{text}");
        }
    }

    #[test]
    fn what_is_no_pointer_is_refused() {
        let deep = "/a".repeat(MAX_DEPTH + 1);
        for entry in ["/~", "/a~", "/a~2", "/~/b", "/a/~x", "/~~0", &deep] {
            let refused = Excluded::new(&[entry.to_owned()]).unwrap_err();
            assert_eq!(refused.kind(), Kind::Config, "{entry}");
            assert!(refused.to_string().contains("is no JSON pointer"), "{refused}");
        }
        for entry in ["", "/", "//", "a~2", "~", "/~0~1", &"/a".repeat(MAX_DEPTH)] {
            assert!(Excluded::new(&[entry.to_owned()]).is_ok(), "{entry}");
        }
    }

    const NAMES: [&str; 7] = ["a", "b", "0", "1", "", "~/", "é\n"];

    enum Value {
        Plain(&'static str),
        Array(Vec<Self>),
        /// With the places of their names.
        Object(Vec<(usize, Self)>),
    }

    struct Dice(u64);

    impl Dice {
        fn below(&mut self, bound: usize) -> usize {
            self.0 ^= self.0 << 13;
            self.0 ^= self.0 >> 7;
            self.0 ^= self.0 << 17;
            usize::try_from(self.0 >> 33).unwrap() % bound
        }

        fn value(&mut self, depth: usize) -> Value {
            match self.below(if depth == 0 { 1 } else { 3 }) {
                0 => Value::Plain(["1", "-0.5e7", "null", "\"x y\"", "{}", "[]"][self.below(6)]),
                1 => Value::Array((0..self.below(4)).map(|_| self.value(depth - 1)).collect()),
                _ => {
                    let names: Vec<_> = (0..NAMES.len()).filter(|_| self.below(2) == 0).collect();
                    Value::Object(names.into_iter().map(|name| (name, self.value(depth - 1))).collect())
                }
            }
        }

        fn pointer(&mut self) -> Vec<&'static str> {
            (0..=self.below(3)).map(|_| NAMES[self.below(NAMES.len())]).collect()
        }

        /// One of the ways to write it.
        fn text(&mut self, value: &Value) -> String {
            let mut spaced =
                |text: &str| format!("{}{text}{}", " ".repeat(self.below(2)), "\n".repeat(self.below(2)));
            let (comma, colon) = (spaced(","), spaced(":"));
            match value {
                Value::Plain(text) => spaced(text),
                Value::Array(values) => {
                    let values: Vec<_> = values.iter().map(|value| self.text(value)).collect();
                    format!("[{}]", values.join(&comma))
                }
                Value::Object(members) => {
                    let escaped =
                        |name: &str| name.chars().map(|c| format!("\\u{:04x}", u32::from(c))).collect();
                    let mut members: Vec<_> = members
                        .iter()
                        .map(|(name, value)| {
                            let name = NAMES[*name];
                            let is_plain = !name.contains('\n') && self.below(2) == 0;
                            let name: String = if is_plain { name.to_owned() } else { escaped(name) };
                            format!("\"{name}\"{colon}{}", self.text(value))
                        })
                        .collect();
                    if !members.is_empty() {
                        let first = self.below(members.len());
                        members.rotate_left(first);
                    }
                    format!("{{{}}}", members.join(&comma))
                }
            }
        }
    }

    /// What should come of it, said in another way.
    fn expected(value: &Value, path: &[&str], excluded: &[Vec<&str>]) -> Vec<u8> {
        let under = |name: &str| [path, &[name]].concat().iter().map(|part| (*part).to_owned()).collect();
        let is_excluded = |path: &Vec<String>| excluded.iter().any(|other| other == path);
        let below = |path: &[String], value| {
            expected(value, &path.iter().map(String::as_str).collect::<Vec<_>>(), excluded)
        };
        match value {
            Value::Plain(text) => text.as_bytes().to_vec(),
            Value::Array(values) => {
                let values = values.iter().enumerate().map(|(index, value)| {
                    let path = under(&index.to_string());
                    if is_excluded(&path) { b"~".to_vec() } else { below(&path, value) }
                });
                [&b"["[..], &values.collect::<Vec<_>>().join(&b','), b"]"].concat()
            }
            Value::Object(members) => {
                let members =
                    members.iter().map(|(name, value)| (under(NAMES[*name]), quoted(NAMES[*name]), value));
                let kept = members.filter(|(path, ..)| !is_excluded(path));
                let mut kept: Vec<_> = kept
                    .map(|(path, name, value)| [name, b":".to_vec(), below(&path, value)].concat())
                    .collect();
                kept.sort();
                [&b"{"[..], &kept.join(&b','), b"}"].concat()
            }
        }
    }

    #[test]
    fn however_a_text_is_written_what_pointers_lead_to_is_left_out() {
        let given = std::env::var("ONCEBOX_SEED").ok().and_then(|text| text.parse().ok());
        let seed: u64 = given.unwrap_or_else(|| {
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
            now.map_or(1, |now| now.as_nanos() as u64)
        });
        println!("however_a_text_is_written: ONCEBOX_SEED={seed}");
        let mut dice = Dice(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);

        for _ in 0..5_000 {
            let value = dice.value(4);
            let pointers: Vec<_> = (0..dice.below(4)).map(|_| dice.pointer()).collect();
            let escaped = |name: &&str| format!("/{}", name.replace('~', "~0").replace('/', "~1"));
            let entries: Vec<String> =
                pointers.iter().map(|path| path.iter().map(escaped).collect()).collect();
            let text = dice.text(&value);

            let form = canonical(text.as_bytes(), &Excluded::new(&entries).unwrap()).unwrap();

            let expected = expected(&value, &[], &pointers);
            let [form, expected] = [form, expected].map(|form| String::from_utf8(form).unwrap());
            assert_eq!(form, expected, "{entries:?} {text}");
        }
    }
}
