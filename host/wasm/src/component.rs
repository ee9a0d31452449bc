//! One component: from validated bytes to something linked, and one version of it with its operator file.

use std::sync::Arc;

use hostler_core::grant::Grant;
use hostler_core::seams::Failure;
use wasmtime::component::Component;

use crate::call::{Health, Runner};
use crate::compile::Compiler;
use crate::engine::{MEMORIES, MEMORY, Sandbox, TABLE_ELEMENTS, TABLES};
use crate::error::LoadError;
use crate::inspect::{Facts, World};
use crate::limits::CallState;
use crate::memo::Memo;
use crate::v0_1::{self, MachineDriverPre, ProfileResolverPre, ReviewPolicyPre};
use crate::{grants, text};

/// Compiled and linked once; each call instantiates it anew.
pub(crate) struct Loaded {
    pub(crate) digest: String,
    pub(crate) size: u64,
    pub(crate) facts: Facts,
    pre: Pre,
}

enum Pre {
    Driver(MachineDriverPre<CallState>),
    Resolver(ProfileResolverPre<CallState>),
    Policy(ReviewPolicyPre<CallState>),
}

/// A component with its operator file: what serves or does not serve, as one.
pub(crate) struct Version {
    pub(crate) runner: Runner,
    pub(crate) loaded: Arc<Loaded>,
    pub(crate) grant: Arc<Grant>,
    /// Text of the operator file; none where there is none.
    pub(crate) grant_text: Option<String>,
    pub(crate) work: Work,
}

/// What it is for, with what is kept for that.
pub(crate) enum Work {
    /// Drives machines.
    Driver,
    /// Chooses profiles.
    Resolver {
        settings: String,
        memo: Memo<hostler_core::seams::Resolution>,
    },
    /// Judges requests.
    Policy {
        settings: String,
        interests: Vec<(String, Vec<String>)>,
        memo: Memo<hostler_core::seams::Verdict>,
    },
}

impl Loaded {
    /// Compiles and links bytes that are kept under their digest and were judged.
    pub(crate) async fn load(
        facts: Facts,
        digest: String,
        size: u64,
        compiler: &Compiler,
        sandbox: &Sandbox,
    ) -> Result<Self, LoadError> {
        let component = compiler.compiled(&digest).await?;
        fits_a_seat(&component)?;
        let linker = if facts.wasi {
            &sandbox.with_wasi
        } else {
            &sandbox.bare
        };
        let pre = linker
            .instantiate_pre(&component)
            .map_err(|error| does_not_link(&error))?;
        let pre = match facts.world {
            World::MachineDriver => Pre::Driver(MachineDriverPre::new(pre).map_err(|e| does_not_link(&e))?),
            World::ProfileResolver => {
                Pre::Resolver(ProfileResolverPre::new(pre).map_err(|e| does_not_link(&e))?)
            }
            World::ReviewPolicy => Pre::Policy(ReviewPolicyPre::new(pre).map_err(|e| does_not_link(&e))?),
        };
        Ok(Self {
            digest,
            size,
            facts,
            pre,
        })
    }

    pub(crate) fn driver(&self) -> Option<&MachineDriverPre<CallState>> {
        match &self.pre {
            Pre::Driver(pre) => Some(pre),
            Pre::Resolver(_) | Pre::Policy(_) => None,
        }
    }

    pub(crate) fn resolver(&self) -> Option<&ProfileResolverPre<CallState>> {
        match &self.pre {
            Pre::Resolver(pre) => Some(pre),
            Pre::Driver(_) | Pre::Policy(_) => None,
        }
    }

    pub(crate) fn policy(&self) -> Option<&ReviewPolicyPre<CallState>> {
        match &self.pre {
            Pre::Policy(pre) => Some(pre),
            Pre::Driver(_) | Pre::Resolver(_) => None,
        }
    }

    fn instance_pre(&self) -> &wasmtime::component::InstancePre<CallState> {
        match &self.pre {
            Pre::Driver(pre) => pre.instance_pre(),
            Pre::Resolver(pre) => pre.instance_pre(),
            Pre::Policy(pre) => pre.instance_pre(),
        }
    }
}

impl Version {
    /// Reads the operator file, and tries the component: only what has answered once may serve.
    pub(crate) async fn activate(
        name: &str,
        loaded: Arc<Loaded>,
        grant_text: Option<String>,
        sandbox: &Arc<Sandbox>,
        health: Arc<Health>,
    ) -> Result<Self, LoadError> {
        let grant = Arc::new(grants::parse(grant_text.as_deref())?);
        let runner = Runner::new(name, &loaded.digest, sandbox.clone(), health);
        let settings = grants::settings(&grant);
        let tried = |failure: Failure| LoadError::ProbeFailed(failure.reason().clone());
        let work = match loaded.facts.world {
            World::MachineDriver => {
                instantiate(&runner, &loaded, &grant).await.map_err(tried)?;
                Work::Driver
            }
            World::ProfileResolver => {
                v0_1::probe(&runner, &loaded, &grant.limits, &settings)
                    .await
                    .map_err(tried)?;
                Work::Resolver {
                    settings,
                    memo: Memo::new(),
                }
            }
            World::ReviewPolicy => {
                let answer = v0_1::accepts(&runner, &loaded, &grant.limits, &settings).await;
                let interests = answer.map_err(tried)?.map_err(LoadError::SettingsRefused)?;
                Work::Policy {
                    settings,
                    interests,
                    memo: Memo::new(),
                }
            }
        };
        Ok(Self {
            runner,
            loaded,
            grant,
            grant_text,
            work,
        })
    }
}

/// A driver has no function that may be called without a provider; that it starts within its limits is tried.
async fn instantiate(runner: &Runner, loaded: &Loaded, grant: &Grant) -> Result<(), Failure> {
    let (ticket, mut store) = runner.begin("start", &grant.limits).await?;
    ticket
        .run(loaded.instance_pre().instantiate_async(&mut store))
        .await?;
    ticket.settle(0, || Ok(()))
}

/// Refuses early what could never be instantiated.
fn fits_a_seat(component: &Component) -> Result<(), LoadError> {
    let Some(needs) = component.resources_required() else {
        return Err(LoadError::TooManyParts(
            "a core module that only its host could give".to_owned(),
        ));
    };
    let too = |what: String| Err(LoadError::TooManyParts(what));
    if needs.num_memories > MEMORIES {
        return too(format!(
            "{} memories, a call has at most {MEMORIES}",
            needs.num_memories
        ));
    }
    if needs.num_tables > TABLES {
        return too(format!(
            "{} tables, a call has at most {TABLES}",
            needs.num_tables
        ));
    }
    if needs
        .max_initial_memory_size
        .is_some_and(|size| size > MEMORY as u64)
    {
        return too("more memory at its start than any call may have".to_owned());
    }
    if needs
        .max_initial_table_size
        .is_some_and(|size| size > TABLE_ELEMENTS as u64)
    {
        return too(format!("a table of more than {TABLE_ELEMENTS} elements"));
    }
    Ok(())
}

fn does_not_link(error: &wasmtime::Error) -> LoadError {
    LoadError::LinkFailed(text::message(&format!("{error:#}")))
}
