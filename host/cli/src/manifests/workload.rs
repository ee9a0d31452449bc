//! The host's own pods and what stands around them: Service, disruption budget, network policy, priority of its requests.

use std::collections::BTreeMap;

use k8s_openapi::api::apps::v1::{
    Deployment, DeploymentSpec, DeploymentStrategy, RollingUpdateDeployment, StatefulSet, StatefulSetSpec,
};
use k8s_openapi::api::core::v1::{
    Affinity, Capabilities, ConfigMapProjection, Container, ContainerPort, EmptyDirVolumeSource, EnvVar,
    EnvVarSource, HTTPGetAction, ImageVolumeSource, ObjectFieldSelector, PersistentVolumeClaim,
    PersistentVolumeClaimSpec, PodAffinityTerm, PodAntiAffinity, PodSecurityContext, PodSpec,
    PodTemplateSpec, Probe, ProjectedVolumeSource, ResourceRequirements, SeccompProfile, SecurityContext,
    Service, ServicePort, ServiceSpec, Volume, VolumeMount, VolumeProjection, VolumeResourceRequirements,
    WeightedPodAffinityTerm,
};
use k8s_openapi::api::flowcontrol::v1::{
    FlowDistinguisherMethod, FlowSchema, FlowSchemaSpec, LimitResponse, LimitedPriorityLevelConfiguration,
    NonResourcePolicyRule, PolicyRulesWithSubjects, PriorityLevelConfiguration,
    PriorityLevelConfigurationReference, PriorityLevelConfigurationSpec, QueuingConfiguration,
    ResourcePolicyRule, ServiceAccountSubject, Subject,
};
use k8s_openapi::api::networking::v1::{
    NetworkPolicy, NetworkPolicyIngressRule, NetworkPolicyPeer, NetworkPolicyPort, NetworkPolicySpec,
};
use k8s_openapi::api::policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use serde_json::{Value, json};

use super::{PluginSource, Site};
use crate::args::StateVolume;

/// Where probes and metrics are answered.
pub(super) const PORT: i32 = 8080;
/// Name of that port.
pub(super) const PORT_NAME: &str = "http";
/// Nobody in particular, and in no group of the image's.
const USER: i64 = 65532;
/// Name of the container.
pub(super) const CONTAINER: &str = "host";
const PLUGINS: &str = "/plugins";
/// The volume belongs to the group, the directory in it to the host alone, as the host demands of its state.
const STATE_VOLUME: &str = "/var/lib/hostler";
const STATE: &str = "/var/lib/hostler/state";
/// Seconds that a host may take to end: it gives up its lease and lets writes in flight land.
const GRACE: i64 = 30;

/// Everything around the pods, and the pods.
pub(super) fn objects(site: &Site) -> anyhow::Result<Vec<Value>> {
    let mut objects = vec![
        super::json(&priority(site))?,
        super::json(&flow(site))?,
        super::json(&flow_of_leases(site))?,
        super::json(&service(site))?,
        super::json(&network_policy(site))?,
        super::json(&budget(site))?,
    ];
    if site.service_monitor {
        objects.push(service_monitor(site));
    }
    objects.push(match site.state {
        StateVolume::Claim => super::json(&stateful_set(site))?,
        StateVolume::EmptyDir => super::json(&deployment(site))?,
    });
    Ok(objects)
}

/// Replicas that each keep their state, also from one pod to the next of the same name.
pub(super) fn stateful_set(site: &Site) -> StatefulSet {
    StatefulSet {
        metadata: site.at_home(""),
        spec: Some(StatefulSetSpec {
            replicas: Some(site.replicas),
            service_name: Some(site.name.clone()),
            // One replica is active whatever the others do; none waits for another to start.
            pod_management_policy: Some("Parallel".to_owned()),
            selector: selector(site),
            template: pod(site, None),
            volume_claim_templates: Some(vec![PersistentVolumeClaim {
                metadata: ObjectMeta {
                    name: Some("state".to_owned()),
                    labels: Some(site.labels()),
                    ..ObjectMeta::default()
                },
                spec: Some(PersistentVolumeClaimSpec {
                    access_modes: Some(vec!["ReadWriteOnce".to_owned()]),
                    resources: Some(VolumeResourceRequirements {
                        requests: Some([("storage".to_owned(), Quantity(site.state_size.clone()))].into()),
                        limits: None,
                    }),
                    ..PersistentVolumeClaimSpec::default()
                }),
                status: None,
            }]),
            ..StatefulSetSpec::default()
        }),
        status: None,
    }
}

/// Replicas whose state ends with their pod.
pub(super) fn deployment(site: &Site) -> Deployment {
    let scratch = Volume {
        name: "state".to_owned(),
        empty_dir: Some(EmptyDirVolumeSource {
            size_limit: Some(Quantity(site.state_size.clone())),
            medium: None,
        }),
        ..Volume::default()
    };
    Deployment {
        metadata: site.at_home(""),
        spec: Some(DeploymentSpec {
            replicas: Some(site.replicas),
            selector: selector(site),
            strategy: Some(DeploymentStrategy {
                type_: Some("RollingUpdate".to_owned()),
                rolling_update: Some(RollingUpdateDeployment {
                    max_surge: Some(IntOrString::Int(1)),
                    max_unavailable: Some(IntOrString::Int(0)),
                }),
            }),
            template: pod(site, Some(scratch)),
            ..DeploymentSpec::default()
        }),
        status: None,
    }
}

fn pod(site: &Site, state: Option<Volume>) -> PodTemplateSpec {
    let mut volumes = vec![plugins(&site.plugins)];
    volumes.extend(state);
    PodTemplateSpec {
        metadata: Some(ObjectMeta {
            labels: Some(site.labels()),
            ..ObjectMeta::default()
        }),
        spec: Some(PodSpec {
            service_account_name: Some(site.name.clone()),
            automount_service_account_token: Some(true),
            enable_service_links: Some(false),
            termination_grace_period_seconds: Some(GRACE),
            security_context: Some(PodSecurityContext {
                run_as_non_root: Some(true),
                run_as_user: Some(USER),
                run_as_group: Some(USER),
                fs_group: Some(USER),
                // Not file by file at each start: files in it are the host's alone.
                fs_group_change_policy: Some("OnRootMismatch".to_owned()),
                seccomp_profile: Some(SeccompProfile {
                    type_: "RuntimeDefault".to_owned(),
                    localhost_profile: None,
                }),
                ..PodSecurityContext::default()
            }),
            affinity: Some(apart(site)),
            containers: vec![container(site)],
            volumes: Some(volumes),
            ..PodSpec::default()
        }),
    }
}

fn container(site: &Site) -> Container {
    let of_pod = |name: &str, path: &str| EnvVar {
        name: name.to_owned(),
        value_from: Some(EnvVarSource {
            field_ref: Some(ObjectFieldSelector {
                field_path: path.to_owned(),
                api_version: None,
            }),
            ..EnvVarSource::default()
        }),
        value: None,
    };
    Container {
        name: CONTAINER.to_owned(),
        image: Some(site.image.clone()),
        args: Some(arguments(site)),
        env: Some(vec![
            of_pod("POD_NAME", "metadata.name"),
            of_pod("POD_NAMESPACE", "metadata.namespace"),
        ]),
        ports: Some(vec![ContainerPort {
            name: Some(PORT_NAME.to_owned()),
            container_port: PORT,
            protocol: Some("TCP".to_owned()),
            ..ContainerPort::default()
        }]),
        // Components are compiled before the first answer, which takes a while on a slow machine.
        startup_probe: Some(probe("/healthz", 5, 60)),
        liveness_probe: Some(probe("/healthz", 10, 3)),
        readiness_probe: Some(probe("/readyz", 5, 3)),
        resources: Some(ResourceRequirements {
            requests: Some(quantities(&[("cpu", "100m"), ("memory", "256Mi")])),
            limits: Some(quantities(&[("memory", "1Gi")])),
            claims: None,
        }),
        security_context: Some(SecurityContext {
            allow_privilege_escalation: Some(false),
            read_only_root_filesystem: Some(true),
            capabilities: Some(Capabilities {
                drop: Some(vec!["ALL".to_owned()]),
                add: None,
            }),
            ..SecurityContext::default()
        }),
        volume_mounts: Some(vec![
            VolumeMount {
                name: "plugins".to_owned(),
                mount_path: PLUGINS.to_owned(),
                read_only: Some(true),
                ..VolumeMount::default()
            },
            VolumeMount {
                name: "state".to_owned(),
                mount_path: STATE_VOLUME.to_owned(),
                ..VolumeMount::default()
            },
        ]),
        ..Container::default()
    }
}

fn arguments(site: &Site) -> Vec<String> {
    let mut arguments = vec![
        "run".to_owned(),
        format!("--plugins={PLUGINS}"),
        format!("--state={STATE}"),
        format!("--installation={}", site.installation),
        format!("--cluster={}", site.cluster),
        format!("--metrics-listen=[::]:{PORT}"),
        format!("--resolver={}", site.resolver),
    ];
    arguments.extend(site.policies.iter().map(|policy| format!("--policy={policy}")));
    arguments
}

/// The volume with the components; read-only, and other bytes never come into it behind the host's back under an image's digest.
fn plugins(source: &PluginSource) -> Volume {
    match source {
        PluginSource::Image(reference) => image_volume(reference),
        PluginSource::ConfigMaps(maps) => projected(
            maps.iter()
                .filter_map(|map| map.metadata.name.clone())
                .map(projection)
                .collect(),
        ),
    }
}

pub(super) fn image_volume(reference: &str) -> Volume {
    Volume {
        name: "plugins".to_owned(),
        image: Some(ImageVolumeSource {
            reference: Some(reference.to_owned()),
            pull_policy: None,
        }),
        ..Volume::default()
    }
}

pub(super) fn projected(sources: Vec<VolumeProjection>) -> Volume {
    Volume {
        name: "plugins".to_owned(),
        projected: Some(ProjectedVolumeSource {
            sources: Some(sources),
            default_mode: None,
        }),
        ..Volume::default()
    }
}

pub(super) fn projection(name: String) -> VolumeProjection {
    VolumeProjection {
        config_map: Some(ConfigMapProjection {
            name,
            ..ConfigMapProjection::default()
        }),
        ..VolumeProjection::default()
    }
}

fn probe(path: &str, period: i32, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String(PORT_NAME.to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(period),
        failure_threshold: Some(failures),
        timeout_seconds: Some(2),
        ..Probe::default()
    }
}

/// On two machines where there are two.
fn apart(site: &Site) -> Affinity {
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![WeightedPodAffinityTerm {
                weight: 100,
                pod_affinity_term: PodAffinityTerm {
                    topology_key: "kubernetes.io/hostname".to_owned(),
                    label_selector: Some(selector(site)),
                    ..PodAffinityTerm::default()
                },
            }]),
            required_during_scheduling_ignored_during_execution: None,
        }),
        ..Affinity::default()
    }
}

fn service(site: &Site) -> Service {
    Service {
        metadata: site.at_home(""),
        spec: Some(ServiceSpec {
            // One address for each replica: each has metrics of its own.
            cluster_ip: Some("None".to_owned()),
            selector: Some(site.labels()),
            ports: Some(vec![ServicePort {
                name: Some(PORT_NAME.to_owned()),
                port: PORT,
                target_port: Some(IntOrString::String(PORT_NAME.to_owned())),
                protocol: Some("TCP".to_owned()),
                ..ServicePort::default()
            }]),
            ..ServiceSpec::default()
        }),
        status: None,
    }
}

/// Nothing but metrics may be asked for from outside; what the host itself asks is not bounded, since tenants' APIs may be anywhere.
fn network_policy(site: &Site) -> NetworkPolicy {
    let from = NetworkPolicyPeer {
        namespace_selector: Some(LabelSelector {
            match_labels: site
                .metrics_from
                .as_ref()
                .map(|name| [("kubernetes.io/metadata.name".to_owned(), name.clone())].into()),
            match_expressions: None,
        }),
        ..NetworkPolicyPeer::default()
    };
    NetworkPolicy {
        metadata: site.at_home(""),
        spec: Some(NetworkPolicySpec {
            pod_selector: Some(selector(site)),
            policy_types: Some(vec!["Ingress".to_owned()]),
            ingress: Some(vec![NetworkPolicyIngressRule {
                from: Some(vec![from]),
                ports: Some(vec![NetworkPolicyPort {
                    port: Some(IntOrString::String(PORT_NAME.to_owned())),
                    protocol: Some("TCP".to_owned()),
                    end_port: None,
                }]),
            }]),
            egress: None,
        }),
    }
}

/// A drained node takes one replica at a time; one that is broken anyway holds no drain up.
fn budget(site: &Site) -> PodDisruptionBudget {
    PodDisruptionBudget {
        metadata: site.at_home(""),
        spec: Some(PodDisruptionBudgetSpec {
            max_unavailable: Some(IntOrString::Int(1)),
            selector: Some(selector(site)),
            unhealthy_pod_eviction_policy: Some("AlwaysAllow".to_owned()),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    }
}

/// A share of the API server that other programs cannot use up, and beyond which the host takes nothing from them.
fn priority(site: &Site) -> PriorityLevelConfiguration {
    PriorityLevelConfiguration {
        metadata: site.anywhere(""),
        spec: Some(PriorityLevelConfigurationSpec {
            type_: "Limited".to_owned(),
            limited: Some(LimitedPriorityLevelConfiguration {
                nominal_concurrency_shares: Some(20),
                // Unused most of the time, so others may have it meanwhile.
                lendable_percent: Some(75),
                borrowing_limit_percent: None,
                limit_response: Some(LimitResponse {
                    type_: "Queue".to_owned(),
                    queuing: Some(QueuingConfiguration {
                        // By namespace: a tenant with many claims does not stand before the others.
                        queues: Some(32),
                        hand_size: Some(4),
                        queue_length_limit: Some(50),
                    }),
                }),
            }),
            exempt: None,
        }),
        status: None,
    }
}

fn flow(site: &Site) -> FlowSchema {
    let everything = PolicyRulesWithSubjects {
        subjects: vec![subject(site)],
        resource_rules: Some(vec![ResourcePolicyRule {
            api_groups: vec!["*".to_owned()],
            resources: vec!["*".to_owned()],
            verbs: vec!["*".to_owned()],
            namespaces: Some(vec!["*".to_owned()]),
            cluster_scope: Some(true),
        }]),
        non_resource_rules: Some(vec![NonResourcePolicyRule {
            verbs: vec!["*".to_owned()],
            non_resource_urls: vec!["*".to_owned()],
        }]),
    };
    FlowSchema {
        metadata: site.anywhere(""),
        spec: Some(FlowSchemaSpec {
            priority_level_configuration: PriorityLevelConfigurationReference {
                name: site.name.clone(),
            },
            // Before the cluster's own schema for service accounts, which is at 9000.
            matching_precedence: Some(1000),
            distinguisher_method: Some(FlowDistinguisherMethod {
                type_: "ByNamespace".to_owned(),
            }),
            rules: Some(vec![everything]),
        }),
        status: None,
    }
}

/// Renewing a lease late costs the lease, so it goes the way of the cluster's own leases.
fn flow_of_leases(site: &Site) -> FlowSchema {
    FlowSchema {
        metadata: site.anywhere("-leases"),
        spec: Some(FlowSchemaSpec {
            priority_level_configuration: PriorityLevelConfigurationReference {
                name: "leader-election".to_owned(),
            },
            matching_precedence: Some(900),
            distinguisher_method: Some(FlowDistinguisherMethod {
                type_: "ByUser".to_owned(),
            }),
            rules: Some(vec![PolicyRulesWithSubjects {
                subjects: vec![subject(site)],
                resource_rules: Some(vec![ResourcePolicyRule {
                    api_groups: vec!["coordination.k8s.io".to_owned()],
                    resources: vec!["leases".to_owned()],
                    verbs: vec!["*".to_owned()],
                    namespaces: Some(vec![site.namespace.clone()]),
                    cluster_scope: None,
                }]),
                non_resource_rules: None,
            }]),
        }),
        status: None,
    }
}

fn subject(site: &Site) -> Subject {
    Subject {
        kind: "ServiceAccount".to_owned(),
        service_account: Some(ServiceAccountSubject {
            name: site.name.clone(),
            namespace: site.namespace.clone(),
        }),
        user: None,
        group: None,
    }
}

/// A kind of the Prometheus operator's, so no type of Kubernetes.
pub(super) fn service_monitor(site: &Site) -> Value {
    json!({
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "ServiceMonitor",
        "metadata": site.at_home(""),
        "spec": {
            "selector": selector(site),
            "endpoints": [{ "port": PORT_NAME, "path": "/metrics", "interval": "30s" }],
        },
    })
}

fn selector(site: &Site) -> LabelSelector {
    LabelSelector {
        match_labels: Some(site.labels()),
        match_expressions: None,
    }
}

fn quantities(pairs: &[(&str, &str)]) -> BTreeMap<String, Quantity> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), Quantity((*value).to_owned())))
        .collect()
}
