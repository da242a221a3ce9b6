//! What comes in wrong: a clear error, nothing lost, nothing wedged. Every
//! case ends by showing that the same objects work once the fault is gone.

mod ground;
mod messages;
pub(crate) mod place;
mod rows;
mod schema;
