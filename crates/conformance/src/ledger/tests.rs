//! Each violation is found, and named as what it is.

use super::*;

fn entry(id: &str, key: &str, sequence: i64) -> Entry {
    let key = (!key.is_empty()).then(|| key.to_owned());
    Entry { handler: "h".into(), id: id.into(), key, sequence, amount: 10 }
}

fn committed() -> Vec<Entry> {
    vec![entry("1", "a", 1), entry("2", "a", 2), entry("3", "b", 1), entry("4", "", 0)]
}

fn identity(id: &str) -> Identity {
    ("h".into(), id.into())
}

#[test]
fn effects_of_different_keys_may_interleave() {
    let mut effects = committed();
    effects.swap(0, 3);
    effects.swap(1, 2);

    let findings = Ledger::check(&committed(), &effects);

    assert!(!findings.is_clean(), "swapped within key a");
    effects = vec![entry("4", "", 0), entry("1", "a", 1), entry("3", "b", 1), entry("2", "a", 2)];
    Ledger::check(&committed(), &effects).assert_clean();
}

#[test]
fn a_missing_effect_is_lost_and_unbalances_its_key() {
    let effects: Vec<Entry> = committed().into_iter().filter(|entry| entry.id != "2").collect();

    let findings = Ledger::check(&committed(), &effects);

    assert_eq!(findings.lost, [identity("2")]);
    assert_eq!((findings.imbalances[0].expected, findings.imbalances[0].found), (20, 10));
    assert!(findings.doubled.is_empty() && findings.phantoms.is_empty() && findings.inversions.is_empty());
}

#[test]
fn a_second_effect_is_a_double_and_no_inversion() {
    let mut effects = committed();
    effects.push(entry("1", "a", 1));

    let findings = Ledger::check(&committed(), &effects);

    assert_eq!(findings.doubled, [(identity("1"), 2)]);
    assert!(findings.inversions.is_empty() && findings.lost.is_empty());
}

#[test]
fn an_effect_of_nothing_committed_is_a_phantom() {
    let mut effects = committed();
    effects.push(entry("9", "a", 3));

    let findings = Ledger::check(&committed(), &effects);

    assert_eq!(findings.phantoms, [identity("9")]);
}

#[test]
fn an_effect_below_an_earlier_one_of_its_key_is_an_inversion() {
    let mut effects = committed();
    effects.swap(0, 1);

    let findings = Ledger::check(&committed(), &effects);

    assert_eq!(
        findings.inversions,
        [Inversion { handler: "h".into(), key: "a".into(), before: 2, after: 1 }]
    );
    assert!(findings.lost.is_empty() && findings.doubled.is_empty() && findings.imbalances.is_empty());
}

#[test]
fn a_changed_amount_is_an_imbalance() {
    let mut effects = committed();
    effects[2].amount = 11;

    let findings = Ledger::check(&committed(), &effects);

    assert_eq!(findings.imbalances.len(), 1);
    assert_eq!(findings.imbalances[0].key.as_deref(), Some("b"));
}

#[test]
fn handlers_are_counted_apart() {
    let mut expected = committed();
    expected.extend(committed().into_iter().map(|entry| Entry { handler: "other".into(), ..entry }));

    let findings = Ledger::check(&expected, &committed());

    assert_eq!(findings.lost.len(), 4);
    assert!(findings.lost.iter().all(|(handler, _)| handler == "other"));
}

#[test]
fn an_unknown_commit_may_have_happened_once_or_not_at_all() {
    let unknown = [entry("5", "b", 2)];
    let mut effects = committed();

    Ledger::check_with_unknown(&committed(), &unknown, &effects).assert_clean();
    effects.push(entry("5", "b", 2));
    Ledger::check_with_unknown(&committed(), &unknown, &effects).assert_clean();
    effects.push(entry("5", "b", 2));
    let findings = Ledger::check_with_unknown(&committed(), &unknown, &effects);

    assert_eq!(findings.doubled, [(identity("5"), 2)]);
}

#[test]
fn the_report_counts_everything_and_names_it() {
    let effects = [entry("2", "a", 2), entry("1", "a", 1), entry("1", "a", 1), entry("9", "c", 1)];

    let text = Ledger::check(&committed(), &effects).to_string();

    for part in [
        "4 committed, 4 effects: 2 lost, 1 doubled, 1 phantoms",
        "lost: 3 by h",
        "doubled: 1 by h, 2 times",
        "phantom: 9 by h",
        "imbalance: a of h is 30, not 20",
        "inversion: a of h saw 1 after 2",
    ] {
        assert!(text.contains(part), "{part} is not in {text}");
    }
}
