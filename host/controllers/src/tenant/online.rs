//! Runs one task for each tenant whose API is online: started when it comes, stopped when it goes, started anew when it is another one.

use std::collections::HashMap;
use std::sync::Arc;

use futures::future::BoxFuture;
use futures::{StreamExt, stream};
use kube::ResourceExt;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::control_plane::TenantApi;
use crate::ctx::Ctx;

/// What runs for one tenant until its token says stop.
pub(crate) type Task = BoxFuture<'static, ()>;

/// A tenant's task and what it was started for.
struct Running {
    api: Arc<TenantApi>,
    stop: CancellationToken,
}

/// Runs until `stop`, and until what it started has ended; `start` is called for each tenant that comes online.
pub(crate) async fn each(
    ctx: Arc<Ctx>,
    stop: CancellationToken,
    start: impl Fn(Arc<Ctx>, Arc<TenantApi>, CancellationToken) -> Task,
) {
    let mut running: HashMap<String, Running> = HashMap::new();
    let tasks = TaskTracker::new();
    let mut changes = stream::select_all([
        crate::told(ctx.tenants.changes()).map(drop).boxed(),
        // Also says who is there now.
        ctx.stores.tenants.restated().map(drop).boxed(),
    ]);
    loop {
        tokio::select! {
            () = stop.cancelled() => break,
            change = changes.next() => if change.is_none() { break },
        }
        let mut online: HashMap<String, Arc<TenantApi>> = HashMap::new();
        for uid in ctx
            .stores
            .tenants
            .state()
            .iter()
            .filter_map(|tenant| tenant.uid())
        {
            if let Some(api) = ctx.tenants.get(&uid) {
                online.insert(uid, api);
            }
        }
        running.retain(|uid, known| {
            let same = online.get(uid).is_some_and(|api| Arc::ptr_eq(api, &known.api));
            if !same {
                known.stop.cancel();
            }
            same
        });
        for (uid, api) in online {
            running.entry(uid).or_insert_with(|| {
                let stop = stop.child_token();
                tasks.spawn(start(ctx.clone(), api.clone(), stop.clone()));
                Running { api, stop }
            });
        }
    } // One that is left by itself, because a stream ended, must not be waited for in vain.
    for known in running.values() {
        known.stop.cancel();
    }
    tasks.close();
    tasks.wait().await;
}
