//! A policy, with what is made of it once instead of for every request.

use std::sync::Arc;

use oncebox_core::Result;
use oncebox_core::gate::Excluded;

use crate::policy::Policy;

#[derive(Debug, Default)]
pub(crate) struct Rule {
    pub(crate) policy: Arc<Policy>,
    /// What the policy's names and pointers lead to.
    pub(crate) excluded: Excluded,
}

impl Rule {
    /// # Errors
    /// [`Kind::Config`](oncebox_core::Kind::Config) with what is unsafe about the policy.
    pub(crate) fn new(policy: Policy) -> Result<Self> {
        policy.check()?;
        let excluded = Excluded::new(&policy.excluded)?;
        Ok(Self { policy: Arc::new(policy), excluded })
    }
}
