//! The same objects as a Helm chart: made for a site whose fields are expressions, and written as templates (`template`).
//!
//! Definitions are templates and not in Helm's `crds/`: Helm never touches what is there again, and a host that is newer than its
//! definitions waits for fields that nobody stores. They carry Helm's word to keep them, so that to uninstall deletes no tenant.

mod template;
mod values;

use anyhow::Context;
use hostler_controllers::rights;
use hostler_core::grant::KindGrant;
use hostler_core::seams::Access;
use serde_json::{Value, json};

use self::template::{Template, expression, line, raw};
use super::roles::{Rbac, rules};
use super::workload::{self, CONTAINER};
use super::{Kind, PluginSource, Site, account, definitions, people, plugins, roles};
use crate::args::StateVolume;

/// What tells Helm to leave an object when its release goes.
const KEEP: &str = "helm.sh/resource-policy";

/// All files of the chart, by path within it; `kinds` become its default rights on machines.
///
/// # Errors
/// An object without a YAML form: none of ours.
pub fn files(kinds: &[Kind]) -> anyhow::Result<Vec<(&'static str, String)>> {
    Ok(vec![
        ("Chart.yaml", values::about()),
        ("values.yaml", values::defaults(kinds)?),
        ("values.schema.json", values::schema()?),
        ("templates/NOTES.txt", values::NOTES.to_owned()),
        ("templates/definitions.yaml", crds()?),
        ("templates/rights.yaml", platform_rights()?),
        ("templates/rights-on-machines.yaml", rights_on_machines()?),
        ("templates/rights-of-people.yaml", rights_of_people()?),
        ("templates/host.yaml", host()?),
    ])
}

/// The site that a release is, as Helm knows it.
fn release() -> Site {
    Site {
        name: expression("$.Release.Name"),
        namespace: expression("$.Release.Namespace"),
        image: expression("$.Values.image.reference"),
        replicas: 0,
        installation: expression("$.Values.installation"),
        cluster: expression("$.Values.cluster"),
        resolver: expression("$.Values.required.resolver"),
        policies: vec![expression(".")],
        plugins: PluginSource::Image(expression("$.Values.plugins.image")),
        kinds: Vec::new(),
        state: StateVolume::Claim,
        state_size: expression("$.Values.state.size"),
        service_monitor: true,
        metrics_from: None,
    }
}

fn crds() -> anyhow::Result<String> {
    let mut template =
        Template::new("The kinds of Hostler. Kept when the release goes: with them would go every tenant.");
    template.line("if $.Values.definitions.install");
    for mut definition in definitions()? {
        let metadata = definition["metadata"]
            .as_object_mut()
            .context("a definition has no metadata")?;
        metadata.insert("annotations".to_owned(), json!({ KEEP: "keep" }));
        template.object(definition)?;
    }
    template.line("end");
    Ok(template.text())
}

fn platform_rights() -> anyhow::Result<String> {
    let site = release();
    let mut template = Template::new("Who the host is, and what it may do whatever its providers are.");
    template.object(super::json(&account(&site))?)?;
    for object in roles::objects(&site) {
        template.object(super::json(&object)?)?;
    }
    Ok(template.text())
}

fn rights_of_people() -> anyhow::Result<String> {
    let mut template = Template::new("Roles for people, bound to nobody.");
    template.line("if $.Values.people.create");
    for object in people::objects(&release()) {
        template.object(super::json(&object)?)?;
    }
    template.line("end");
    Ok(template.text())
}

/// A role and its binding for each kind in each of its namespaces, as `roles::of_kind` makes them for a known site.
fn rights_on_machines() -> anyhow::Result<String> {
    let mut template = Template::new(
        "What the host may do for its drivers: one role for each kind and namespace of `kinds`.",
    );
    template.line("range $kind := $.Values.kinds");
    template.line("range $namespace := $kind.namespaces");
    template.line("if eq $namespace \"*\"");
    for object in of_any_kind("*")? {
        template.object(object)?;
    }
    template.line("else");
    for object in of_any_kind(&expression("$namespace"))? {
        template.object(object)?;
    }
    template.line("end");
    template.line("end");
    template.line("end");
    Ok(template.text())
}

fn of_any_kind(namespace: &str) -> anyhow::Result<Vec<Value>> {
    let kind = |access| Kind {
        grant: KindGrant {
            api_version: format!("{}/v1", expression("$kind.apiGroup")),
            kind: "machine".to_owned(),
            access,
            namespaces: vec![namespace.to_owned()],
            places: Vec::new(),
            service_account: None,
        },
        resource: expression("$kind.resource"),
    };
    let written = |access: Access| -> anyhow::Result<Vec<Value>> {
        let kind = kind(access);
        rules(&rights::provider(&kind.grant, &kind.resource))
            .iter()
            .map(super::json)
            .collect()
    };
    let reading = kind(Access::Read);
    let name = expression(
        "printf \"%s-%s-%s%s\" $.Release.Name $kind.access $kind.resource (empty $kind.apiGroup | ternary \"\" (printf \".%s\" $kind.apiGroup))",
    );
    let mut objects = Vec::new();
    for object in roles::of_kind(&release(), &reading) {
        let binds = matches!(object, Rbac::RoleBinding(_) | Rbac::ClusterRoleBinding(_));
        let mut object = super::json(&object)?;
        object["metadata"]["name"] = json!(name);
        if binds {
            object["roleRef"]["name"] = json!(name);
        } else {
            let mut rules = Vec::new();
            for access in [Access::BorrowFields, Access::Manage] {
                let word = if rules.is_empty() { "if" } else { "else if" };
                rules.push(line(&format!(
                    "{word} eq $kind.access \"{}\"",
                    plugins::access(access)
                )));
                rules.extend(written(access)?);
            }
            rules.push(line("else"));
            rules.extend(written(Access::Read)?);
            rules.push(line("end"));
            object["rules"] = json!(rules);
        }
        objects.push(object);
    }
    Ok(objects)
}

fn host() -> anyhow::Result<String> {
    let site = release();
    let mut template = Template::new("The host's pods and what stands around them.");
    for mut object in workload::objects(&site)? {
        let kind = object["kind"].as_str().unwrap_or_default().to_owned();
        match kind.as_str() {
            "PriorityLevelConfiguration" | "FlowSchema" => {
                template.line("if $.Values.flowControl.create");
                template.object(object)?;
                template.line("end");
            }
            "ServiceMonitor" => {
                template.line("if $.Values.metrics.serviceMonitor");
                template.object(object)?;
                template.line("end");
            }
            "NetworkPolicy" => {
                object["spec"]["ingress"][0]["from"][0]["namespaceSelector"] = raw(
                    "if $.Values.metrics.from }}{{ dict \"matchLabels\" (dict \"kubernetes.io/metadata.name\" $.Values.metrics.from) | toJson }}{{ else }}{}{{ end",
                );
                template.object(object)?;
            }
            "StatefulSet" => {
                template.line("if eq $.Values.state.volume \"claim\"");
                template.object(pods(object)?)?;
                template.line("else");
                let scratch = super::json(&workload::deployment(&site))?;
                template.object(pods(scratch)?)?;
                template.line("end");
            }
            _ => template.object(object)?,
        }
    }
    Ok(template.text())
}

/// What a values file says about pods.
fn pods(mut object: Value) -> anyhow::Result<Value> {
    let spec = &mut object["spec"];
    spec["replicas"] = raw("$.Values.replicas | int");
    if let Some(claim) = spec.pointer_mut("/volumeClaimTemplates/0/spec") {
        template::when(claim, "storageClassName", "$.Values.state.storageClass", "quote");
    }
    let pod = spec
        .pointer_mut("/template/spec")
        .context("a workload has pods")?;
    template::when(pod, "nodeSelector", "$.Values.nodeSelector", "toJson");
    template::when(pod, "tolerations", "$.Values.tolerations", "toJson");
    template::when(pod, "priorityClassName", "$.Values.priorityClassName", "quote");
    template::when(pod, "imagePullSecrets", "$.Values.imagePullSecrets", "toJson");
    let volumes = pod["volumes"].as_array_mut().context("a pod has volumes")?;
    let mut from_maps = super::json(&workload::projected(vec![workload::projection(expression("."))]))?;
    let from_image = std::mem::replace(&mut volumes[0], line("if $.Values.plugins.configMaps"));
    let sources = from_maps
        .pointer_mut("/projected/sources")
        .and_then(Value::as_array_mut)
        .context("a projected volume has sources")?;
    sources.insert(0, line("range $.Values.plugins.configMaps"));
    sources.push(line("end"));
    volumes.splice(1..1, [from_maps, line("else"), from_image, line("end")]);
    let container = pod["containers"]
        .as_array_mut()
        .and_then(|all| all.iter_mut().find(|one| one["name"] == CONTAINER))
        .context("the pod has the host's container")?;
    template::when(container, "imagePullPolicy", "$.Values.image.pullPolicy", "quote");
    container["resources"] = raw("toJson $.Values.resources");
    let arguments = container["args"]
        .as_array_mut()
        .context("the container has arguments")?;
    let policy = format!("--policy={}", expression("."));
    let at = arguments
        .iter()
        .position(|one| *one == policy)
        .context("the container is told its policies")?;
    arguments.insert(at, line("range $.Values.required.policies"));
    arguments.insert(at + 2, line("end"));
    Ok(object)
}
