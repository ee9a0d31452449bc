//! Calls a component by function name with JSON, as golden cases do: the same files that hold natively hold through the component.
//!
//! Keys are the names of `wit/` in camelCase; an object may be written as Kubernetes shows it; where `wit/` has JSON text, its value may
//! stand instead of the text. Answers come back in the same form: `{"ok": …}`, `{"err": {"refused": …}}`, `"gone"`.

mod json;

use std::time::Duration;

use hostler_core::digest;
use hostler_core::grant::Limits;
use hostler_core::seams::{Failure, Reason};
use serde_json::Value;
use tokio::sync::watch;
use wasmtime::component::{Component, ComponentExportIndex, InstancePre, types::ComponentItem};

use crate::call::{Health, Runner};
use crate::engine::Sandbox;
use crate::error::LoadError;
use crate::inspect::{self, World};
use crate::limits::CallState;
use crate::text;

/// Limits of a trial: the usual memory, and time for a machine that compiles something else meanwhile.
const LIMITS: Limits = Limits {
    memory: 64 << 20,
    time: Duration::from_secs(10),
    output: 4 << 20,
};

/// A component on the bench. It is compiled in this process: for components of one's own.
pub struct Guest {
    runner: Runner,
    pre: InstancePre<CallState>,
    interface: ComponentExportIndex,
    world: World,
}

/// Why a call by name gave no answer.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum CallError {
    /// The world has no such function.
    #[error("a {world} has no function {function}")]
    NoFunction {
        /// The world.
        world: World,
        /// What was asked for.
        function: String,
    },
    /// The arguments are not the function's.
    #[error("the arguments do not fit: {0}")]
    Arguments(String),
    /// The component failed: a trap, a limit, an answer that cannot be read.
    #[error("{0}")]
    Failed(Failure),
}

impl Guest {
    /// Validates, compiles and links a component.
    ///
    /// # Errors
    /// As the catalog would refuse it.
    pub async fn load(name: &str, bytes: &[u8]) -> Result<Self, LoadError> {
        let facts = inspect::judge(name, bytes)?;
        let failed = |error: wasmtime::Error| LoadError::CompileFailed(text::message(&format!("{error:#}")));
        let sandbox = Sandbox::shared().map_err(failed)?;
        let (engine, bytes) = (sandbox.engine().clone(), bytes.to_owned());
        let digest = digest::of(&bytes);
        let compiled = tokio::task::spawn_blocking(move || Component::new(&engine, bytes)).await;
        let component = compiled
            .map_err(|error| LoadError::CompileFailed(error.to_string()))?
            .map_err(failed)?;
        let linker = if facts.wasi {
            &sandbox.with_wasi
        } else {
            &sandbox.bare
        };
        let unlinked = |error: wasmtime::Error| LoadError::LinkFailed(text::message(&format!("{error:#}")));
        let pre = linker.instantiate_pre(&component).map_err(unlinked)?;
        let interface = component
            .get_export_index(None, facts.interface().as_str())
            .ok_or_else(|| LoadError::LinkFailed(format!("does not export {}", facts.interface())))?;
        let (generation, _) = watch::channel(0);
        let runner = Runner::new(name, &digest, sandbox, Health::new(generation));
        Ok(Self {
            runner,
            pre,
            interface,
            world: facts.world,
        })
    }

    /// Calls a function by its name in `wit/`, with its arguments by theirs. What is left out is absent or empty.
    ///
    /// # Errors
    /// Where there is no such function, the arguments do not fit it, or the component fails. An expected failure is an answer.
    pub async fn call(&self, function: &str, arguments: &Value) -> Result<Value, CallError> {
        let no_function = || CallError::NoFunction {
            world: self.world,
            function: function.to_owned(),
        };
        let component = self.pre.component();
        let (item, index) = component
            .get_export(Some(&self.interface), function)
            .ok_or_else(no_function)?;
        let ComponentItem::ComponentFunc(shape) = item else {
            return Err(no_function());
        };
        let arguments = json::arguments(&shape, arguments).map_err(CallError::Arguments)?;
        let (ticket, mut store) = self
            .runner
            .begin("case", &LIMITS)
            .await
            .map_err(CallError::Failed)?;
        let mut results: Vec<_> = shape
            .results()
            .map(|_| wasmtime::component::Val::Bool(false))
            .collect();
        let call = async {
            let instance = self.pre.instantiate_async(&mut store).await?;
            let function = instance
                .get_func(&mut store, index)
                .ok_or_else(|| wasmtime::format_err!("the export is no function"))?;
            function.call_async(&mut store, &arguments, &mut results).await
        };
        ticket.run(call).await.map_err(CallError::Failed)?;
        let answer = results.first().map_or(Ok(Value::Null), json::answer);
        let answer = answer.map_err(|what| {
            CallError::Failed(Failure::Faulty(Reason::new(
                "PluginAnswerInvalid",
                text::message(&what),
            )))
        })?;
        ticket.settle(0, || Ok(answer)).map_err(CallError::Failed)
    }

    /// What it is for.
    #[must_use]
    pub fn world(&self) -> World {
        self.world
    }
}

impl std::fmt::Debug for Guest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guest")
            .field("world", &self.world)
            .finish_non_exhaustive()
    }
}
