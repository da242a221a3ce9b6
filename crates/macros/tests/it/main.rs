//! Mistakes that must not compile, and what the compiler says about them.
//!
//! After a change of the texts: `TRYBUILD=overwrite cargo test -p oncebox-macros`.

/// One run for all files, and no case that passes: then trybuild only checks
/// the crates below instead of building them. What must compile is in
/// the tests of `oncebox`.
#[test]
fn mistakes_do_not_compile_and_the_message_says_why() {
    let cases = trybuild::TestCases::new();
    for mistake in ["put_without_transaction", "bad_handler_key", "message_options", "handler_functions"] {
        cases.compile_fail(format!("tests/ui/{mistake}.rs"));
    }
}
