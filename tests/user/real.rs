//! What a laboratory is on the real stack, behind a test that waits for nothing: a world that lives on threads of its own.

use std::path::PathBuf;

use tokio::runtime::Runtime;

use crate::harness::process::Process;
use crate::harness::{PLATFORM, World};

/// Real clusters, the data centre, and `hostler run`. It ends when it is dropped.
pub(super) struct Real {
    // In this order: what runs ends before what it runs on.
    host: Option<Process>,
    world: Option<World>,
    runtime: Runtime,
}

impl Real {
    pub(super) fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap();
        let world = runtime.block_on(World::new());
        let host = Process::start(&world, "host", &world.stack.host_kubeconfig(), &[]);
        let kubeconfig = world.stack.kubeconfig(PLATFORM);
        std::fs::write(world.folder.path().join("kubeconfig"), kubeconfig).unwrap();
        Self {
            host: Some(host),
            world: Some(world),
            runtime,
        }
    }

    /// Where `kubeconfig` is, and those of the tenants below `tenants`.
    pub(super) fn data(&self) -> PathBuf {
        self.world.as_ref().expect("it runs").folder.path().to_owned()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        self.host = None;
        // Clients end with their world, inside of the runtime that they were made in.
        let _inside = self.runtime.enter();
        self.world = None;
    }
}
