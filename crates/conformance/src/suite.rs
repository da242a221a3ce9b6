//! Turns a fixture type into test functions, one per case.

/// Makes tests of cases. `$on` names the runner for the kind of fixture, or for a pair of them.
#[doc(hidden)]
#[macro_export]
macro_rules! cases {
    ($on:ident, $fixture:ty, $area:ident::$topic:ident, [$($case:ident)*]) => {
        // For fixtures named relative to where the suite stands.
        #[allow(unused_imports)]
        use super::*;

        $(#[test]
        fn $case() {
            $crate::run::$on::<$fixture, _, _>($crate::$area::$topic::$case);
        })*
    };
    ($on:ident, $store:ty => $transport:ty, $area:ident::$topic:ident, [$($case:ident)*]) => {
        #[allow(unused_imports)]
        use super::*;

        $(#[test]
        fn $case() {
            $crate::run::$on::<$store, $transport, _, _>($crate::$area::$topic::$case);
        })*
    };
}

/// Panics if a case of `topics` is not named in the suite's `list`.
#[cfg(test)]
pub(crate) fn assert_listed(list: &str, topics: &[&str]) {
    let listed: std::collections::HashSet<&str> = list.lines().map(str::trim).collect();
    for topic in topics {
        for case in topic.lines().filter_map(|line| line.strip_prefix("pub async fn ")) {
            let name = case.split(['<', '(']).next().unwrap_or_default();
            assert!(listed.contains(name), "{name} is not in the list of its suite");
        }
    }
}
