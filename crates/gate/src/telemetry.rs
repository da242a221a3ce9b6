//! Names of metrics, and where each is counted. Labels are low-cardinality:
//! never a key, a caller or a path.

use metrics::counter;

/// A request was let in.
pub(crate) fn admitted() {
    counter!("oncebox_gate_admitted_total").increment(1);
}

/// A copy got the first reply.
pub(crate) fn replayed() {
    counter!("oncebox_gate_replayed_total").increment(1);
}

/// A copy was answered by what this process knew.
pub(crate) fn known() {
    counter!("oncebox_gate_cache_hits_total").increment(1);
}

/// A request was refused, by the code of the answer.
pub(crate) fn refused(code: &'static str) {
    counter!("oncebox_gate_refused_total", "code" => code).increment(1);
}

/// A reply without an end was passed on.
pub(crate) fn bypassed() {
    counter!("oncebox_gate_bypassed_total").increment(1);
}

/// The store could not be asked.
pub(crate) fn store_failed() {
    counter!("oncebox_gate_store_errors_total").increment(1);
}

/// Another request under a key that is taken ran all the same, as the policy has it.
pub(crate) fn conflict_allowed() {
    tracing::warn!("a key was used for another request, which runs without protection, as its policy allows");
    counter!("oncebox_gate_conflicts_allowed_total").increment(1);
}
