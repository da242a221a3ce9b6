//! How large an experiment is: small enough for every run of the tests, or
//! whole, as `./dev torture experiments` asks for it.

/// The variable by which the whole size is asked for; children inherit it.
const VARIABLE: &str = "ONCEBOX_EXPERIMENTS";

/// Whether the whole size is asked for.
#[must_use]
pub fn is_full() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|size| size == "full")
}

/// What is right for every run, or for the whole size.
pub fn sized<T>(small: T, full: T) -> T {
    if is_full() { full } else { small }
}
