//! Tenants' values, read once for each generation.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use hostler_api as api;
use hostler_core::seams::Reason;
use hostler_core::values::{self, Values};
use kube::{Resource, ResourceExt};

/// Values, or why they cannot be read.
pub(crate) type Read = Result<Values, Reason>;

/// The values that were read, by tenant uid.
#[derive(Default)]
pub(crate) struct ReadValues(Mutex<HashMap<String, (i64, Arc<Read>)>>);

impl ReadValues {
    /// The values of a tenant as it is.
    pub(crate) fn of(&self, tenant: &api::VirtualClusterInstance) -> Arc<Read> {
        let uid = tenant.uid().unwrap_or_default();
        let generation = tenant.meta().generation.unwrap_or(0);
        if let Some((known, read)) = self.0.lock().expect("no holder panics").get(&uid)
            && *known == generation
        {
            return read.clone();
        }
        let read = Arc::new(parse(tenant));
        self.0
            .lock()
            .expect("no holder panics")
            .insert(uid, (generation, read.clone()));
        read
    }

    /// Forgets a tenant that is gone.
    pub(crate) fn forget(&self, uid: &str) {
        self.0.lock().expect("no holder panics").remove(uid);
    }
}

fn parse(tenant: &api::VirtualClusterInstance) -> Read {
    if tenant.spec.template_ref.is_some() {
        let reason = Reason::new("NotServedYet", "spec.templateRef: templates are not served");
        return Err(reason.remedy("write the definition into spec.template"));
    }
    let text = tenant
        .spec
        .template
        .as_ref()
        .and_then(|template| template.helm_release.as_ref())
        .and_then(|release| release.values.as_deref())
        .unwrap_or_default();
    values::parse(text).map_err(|problems| values::reason(&problems))
}
