//! Schemas of the built-in kinds, from the types of `k8s-openapi` and the overlay of what those leave out.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock};

use k8s_openapi::api::{authentication, authorization, certificates, coordination, core, events, rbac};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value};

use super::overlay;
use crate::schema::{Schema, Type};

/// All components that the built-in kinds are made of, by name. Made once, when first needed.
static COMPONENTS: LazyLock<HashMap<String, Arc<Schema>>> = LazyLock::new(build);

/// A component by its name.
pub(crate) fn component(name: &str) -> Option<&'static Schema> {
    COMPONENTS.get(name).map(Arc::as_ref)
}

/// A component by its name, to be kept.
pub(super) fn shared(name: &str) -> Option<Arc<Schema>> {
    COMPONENTS.get(name).cloned()
}

fn build() -> HashMap<String, Arc<Schema>> {
    let mut generator = SchemaSettings::openapi3().into_generator();
    macro_rules! want {
        ($($kind:ty),* $(,)?) => { $( generator.subschema_for::<$kind>(); )* };
    }
    want!(
        core::v1::Namespace,
        core::v1::Node,
        core::v1::Pod,
        core::v1::PodTemplate,
        core::v1::Service,
        core::v1::Secret,
        core::v1::ConfigMap,
        core::v1::Event,
        core::v1::ServiceAccount,
        events::v1::Event,
        coordination::v1::Lease,
        authentication::v1::SelfSubjectReview,
        authorization::v1::SelfSubjectAccessReview,
        certificates::v1::CertificateSigningRequest,
        apiextensions::v1::CustomResourceDefinition,
        rbac::v1::Role,
        rbac::v1::RoleBinding,
        rbac::v1::ClusterRole,
        rbac::v1::ClusterRoleBinding,
    );
    let written = generator.take_definitions(false);
    let mut building = Building {
        written: &written,
        done: HashMap::new(),
        open: Vec::new(),
    };
    for name in written.keys() {
        building.component(name);
    }
    building.done
}

struct Building<'w> {
    written: &'w Map<String, Value>,
    done: HashMap<String, Arc<Schema>>,
    /// Components that are being built: one that comes up again contains itself.
    open: Vec<String>,
}

impl Building<'_> {
    fn component(&mut self, name: &str) -> Arc<Schema> {
        if let Some(done) = self.done.get(name) {
            return Arc::clone(done);
        }
        let reference = Schema {
            component: Some(name.to_owned()),
            recursive: true,
            ..Schema::default()
        };
        if self.open.iter().any(|open| open == name) {
            return Arc::new(Schema {
                kind: Type::Object,
                ..reference
            });
        }
        let Some(written) = self.written.get(name) else {
            return Arc::new(reference);
        };
        self.open.push(name.to_owned());
        let mut schema = self.node(written);
        self.open.pop();
        overlay::component(name, &mut schema);
        if !schema.recursive {
            schema.component = Some(name.to_owned());
        }
        schema.seal();
        let schema = Arc::new(schema);
        self.done.insert(name.to_owned(), Arc::clone(&schema));
        schema
    }

    fn node(&mut self, written: &Value) -> Schema {
        if let Some(name) = written["$ref"].as_str().and_then(|path| path.rsplit('/').next()) {
            let mut schema = self.component(name).as_ref().clone();
            if let Some(description) = written["description"].as_str() {
                schema.description = Some(description.to_owned());
            }
            return schema;
        }
        let mut schema = Schema::parse_node(written);
        // What a schema may also be a list or a flag for: any value whose fields, if it has some, are a schema's.
        if let Some(branches) = written["oneOf"].as_array() {
            let inner = branches
                .iter()
                .find_map(|branch| branch["$ref"].as_str()?.rsplit('/').next());
            schema.component = inner.map(Into::into);
            schema.recursive = inner.is_some();
            schema.preserve_unknown = true;
            return schema;
        }
        for (name, child) in written["properties"].as_object().into_iter().flatten() {
            schema.properties.insert(name.clone(), Arc::new(self.node(child)));
        }
        if written["additionalProperties"].is_object() {
            schema.additional = Some(Arc::new(self.node(&written["additionalProperties"])));
        }
        if written["items"].is_object() {
            schema.items = Some(Arc::new(self.node(&written["items"])));
        }
        schema
    }
}
