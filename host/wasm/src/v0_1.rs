//! Contract 0.1: the bindings of `wit/v0.1`, and the adapters from them to the seams of `hostler-core`.
//!
//! A later contract gets a folder beside this one and is adapted to the same seams, so that no call asks for a version.

use hostler_core::seams::{Failure, Reason};
use wasmtime::component::{HasSelf, Linker};

use crate::limits::CallState;
use crate::log::Loudness;

mod answer;
mod bindings;
mod convert;
mod driver;
mod policy;
mod resolver;
mod view;

pub(crate) use answer::Breach;
pub(crate) use bindings::driver::MachineDriverPre;
pub(crate) use bindings::policy::ReviewPolicyPre;
pub(crate) use bindings::resolver::ProfileResolverPre;
pub(crate) use driver::DriverHandle;
pub(crate) use policy::{PolicyHandle, accepts};
pub(crate) use resolver::{ResolverHandle, probe};

use bindings::log;

/// Links the one import of every world.
pub(crate) fn link_log(linker: &mut Linker<CallState>) -> wasmtime::Result<()> {
    log::add_to_linker::<_, HasSelf<CallState>>(linker, |state| state)
}

impl log::Host for CallState {
    fn write(&mut self, level: log::Level, message: String) {
        let loudness = match level {
            log::Level::Debug => Loudness::Debug,
            log::Level::Info => Loudness::Info,
            log::Level::Warn => Loudness::Warn,
            log::Level::Error => Loudness::Error,
        };
        self.log.write(loudness, &message);
    }
}

/// A component was asked what its world has no function for. The catalog looks worlds up, so this is for the type's sake.
fn of_another_world(name: &str) -> Failure {
    let what = format!("{name} is a component of another world");
    Failure::Missing(Reason::new("WorldMismatch", what).remedy("name a component of the right world"))
}
