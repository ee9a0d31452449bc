//! Schemas that several kinds share: names, labels, taints, amounts, and the rules that go with them.
//!
//! Every list and map that a rule walks has a bound, so that the API server can tell beforehand what checking costs. The bounds on what
//! a pool may hold are those of [`MOST_LABELS`] and its neighbours, which the host's own reading of pools keeps to as well.

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde_json::{Value, json};

use crate::amount::UNSIGNED;

/// Most labels or annotations of a claim or profile.
pub const MOST_LABELS: usize = 128;
/// Most properties of anything.
pub const MOST_PROPERTIES: usize = 256;
/// Most taints of a claim or profile.
pub const MOST_TAINTS: usize = 64;
/// Most requirements of a claim.
pub const MOST_REQUIREMENTS: usize = 64;
/// Most values of one requirement.
pub const MOST_VALUES: usize = 128;

/// A key: a name of at most 63 characters, and a domain before it if there is a slash.
const KEY: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$";
/// A domain has at most 253 characters, the name 63.
const LONGEST_KEY: u64 = 253 + 1 + 63;
/// A label's value.
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";
/// A name without dots.
const DNS_LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// A name of an object, or nothing.
const NAME_OR_NOTHING: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$";

/// A rule with its message, which says what would mend it.
pub(crate) fn rule(rule: &str, message: &str) -> Value {
    json!({"rule": rule, "message": message})
}

/// A pattern as a literal of the rules' language.
fn literal(pattern: &str) -> String {
    format!("'{}'", pattern.replace('\\', r"\\"))
}

fn keys_are_keys() -> Value {
    let test = literal(KEY);
    rule(
        &format!(
            "self.all(key, size(key) <= {LONGEST_KEY} && key.indexOf('/') <= 253 && key.matches({test}))"
        ),
        "a key is a name of at most 63 letters, digits, '-', '_' and '.', like workload, or one behind a domain, like example.com/workload",
    )
}

fn keys_are_not_the_hosts() -> Value {
    rule(
        r"self.all(key, key != 'vcluster.com/node-profile' && !key.matches('^([^/]*\\.)?hostler\\.dev/'))",
        "vcluster.com/node-profile and the keys of hostler.dev are the host's own; ask for a profile by its name, and use a key of your own domain",
    )
}

fn keys_are_not_of_kubernetes(but: &[&str]) -> Value {
    let known: Vec<String> = but.iter().map(|key| format!("'{key}'")).collect();
    let said = if but.is_empty() {
        String::new()
    } else {
        format!(" (but for {})", but.join(", "))
    };
    rule(
        &format!(
            r"self.all(key, !key.matches('^([^/]*\\.)?(kubernetes|k8s)\\.io/') || key in [{}])",
            known.join(", ")
        ),
        &format!("keys of kubernetes.io and k8s.io may not be set here{said}; use a key of your own domain"),
    )
}

/// Labels of `kubernetes.io` that say what a machine is; the same as the host's own list.
const KNOWN_LABELS: [&str; 5] = [
    "kubernetes.io/arch",
    "kubernetes.io/os",
    "node.kubernetes.io/instance-type",
    "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone",
];

/// Labels for a node.
pub(crate) fn node_labels(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": MOST_LABELS,
        "additionalProperties": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE},
        "x-kubernetes-validations": [keys_are_keys(), keys_are_not_the_hosts(), keys_are_not_of_kubernetes(&KNOWN_LABELS)],
    })
}

/// Annotations for a node.
pub(crate) fn node_annotations(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": MOST_LABELS,
        "additionalProperties": {"type": "string", "maxLength": 65536},
        "x-kubernetes-validations": [keys_are_keys(), keys_are_not_the_hosts(), keys_are_not_of_kubernetes(&[])],
    })
}

/// Properties that nobody makes labels of.
pub(crate) fn properties(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": MOST_PROPERTIES, "additionalProperties": {"type": "string"},
        "x-kubernetes-validations": [keys_are_keys()],
    })
}

/// Properties of a claim.
pub(crate) fn claim_properties(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": MOST_PROPERTIES, "additionalProperties": {"type": "string"},
        "x-kubernetes-validations": [keys_are_keys(), keys_are_not_the_hosts(), keys_are_not_of_kubernetes(&KNOWN_LABELS)],
    })
}

/// Properties of a node type: the built-in ones are the host's.
pub(crate) fn type_properties(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": MOST_PROPERTIES, "additionalProperties": {"type": "string"},
        "x-kubernetes-validations": [
            keys_are_keys(),
            keys_are_not_the_hosts(),
            keys_are_not_of_kubernetes(&KNOWN_LABELS),
            rule(
                "self.all(key, !(key in ['vcluster.com/node-type', 'node.kubernetes.io/instance-type', 'kubernetes.io/os', \
                 'karpenter.sh/capacity-type']))",
                "vcluster.com/node-type, node.kubernetes.io/instance-type, kubernetes.io/os and karpenter.sh/capacity-type are built in; \
                 remove them",
            ),
        ],
    })
}

/// Taints for a node: a set, keyed by key and effect.
pub(crate) fn taints(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "array", "maxItems": MOST_TAINTS,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["key", "effect"],
        "items": {
            "type": "object", "required": ["key", "effect"],
            "properties": {
                "key": {
                    "type": "string", "maxLength": LONGEST_KEY, "pattern": KEY,
                    "description": "Name of the taint, like workload or example.com/workload.",
                    "x-kubernetes-validations": [
                        rule(
                            r"!self.matches('^([^/]*\\.)?hostler\\.dev/')",
                            "the keys of hostler.dev are the host's own; use a key of your own domain",
                        ),
                        rule(
                            r"!self.matches('^([^/]*\\.)?(kubernetes|k8s)\\.io/') || self == 'node.kubernetes.io/out-of-service'",
                            "keys of kubernetes.io and k8s.io may not be set here (but for node.kubernetes.io/out-of-service); use a key of \
                             your own domain",
                        ),
                    ],
                },
                "value": {"type": "string", "maxLength": 63, "pattern": LABEL_VALUE, "description": "Value of the taint."},
                "effect": {
                    "type": "string", "enum": ["NoSchedule", "PreferNoSchedule", "NoExecute"],
                    "description": "What it does to pods that do not tolerate it.",
                },
                "timeAdded": {"type": "string", "format": "date-time", "description": "When it was added."},
            },
        },
    })
}

/// What a claim requires of a type's properties.
pub(crate) fn requirements(_: &mut SchemaGenerator) -> Schema {
    let value = literal(LABEL_VALUE);
    let about_values =
        |test: &str, message: &str| json!({"rule": test, "message": message, "fieldPath": ".values"});
    json_schema!({
        "type": "array", "maxItems": MOST_REQUIREMENTS, "x-kubernetes-list-type": "atomic",
        "items": {
            "type": "object", "required": ["key", "operator"],
            "properties": {
                "key": {"type": "string", "maxLength": LONGEST_KEY, "pattern": KEY, "description": "Property key."},
                "operator": {
                    "type": "string", "enum": ["In", "NotIn", "Exists", "DoesNotExist", "NotExists", "Gt", "Lt"],
                    "description": "How the property is compared; NotExists is DoesNotExist.",
                },
                "values": {
                    "type": "array", "maxItems": MOST_VALUES, "items": {"type": "string", "maxLength": 63},
                    "x-kubernetes-list-type": "atomic", "description": "What it is compared with.",
                },
            },
            "x-kubernetes-validations": [
                about_values(
                    "!(self.operator in ['In', 'NotIn']) || (has(self.values) && size(self.values) > 0)",
                    "In and NotIn compare with at least one value; add one",
                ),
                about_values(
                    &format!("!(self.operator in ['In', 'NotIn']) || !has(self.values) || self.values.all(value, value.matches({value}))"),
                    "a value is at most 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends; correct it",
                ),
                about_values(
                    "!(self.operator in ['Exists', 'DoesNotExist', 'NotExists']) || !has(self.values) || size(self.values) == 0",
                    "values say nothing to Exists, DoesNotExist and NotExists; remove them",
                ),
                about_values(
                    "!(self.operator in ['Gt', 'Lt']) || (has(self.values) && size(self.values) == 1 && \
                     self.values[0].matches('^[-+]?[0-9]{1,18}$'))",
                    "Gt and Lt compare with one whole number; set values to it",
                ),
            ],
        },
    })
}

/// Amounts of resources, none of them negative.
pub(crate) fn resources(_: &mut SchemaGenerator) -> Schema {
    json_schema!({
        "type": "object", "maxProperties": 64,
        "additionalProperties": {"x-kubernetes-int-or-string": true, "minimum": 0, "maxLength": 64, "pattern": UNSIGNED},
        "x-kubernetes-validations": [keys_are_keys()],
    })
}

/// A grace period: the same that the host reads.
pub(crate) fn grace(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 32, "pattern": "^(Never|([0-9]+(ms|h|m|s))+)$"})
}

/// A short text for people.
pub(crate) fn title(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 256})
}

/// A long text for people.
pub(crate) fn prose(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 65536})
}

/// A name without dots, as providers, tenants and types have.
pub(crate) fn label(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "minLength": 1, "maxLength": 63, "pattern": DNS_LABEL})
}

/// A name of an object, which may be empty for none.
pub(crate) fn reference(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 253, "pattern": NAME_OR_NOTHING})
}

/// A name that becomes a label's value, which may be empty for none.
pub(crate) fn short_reference(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 63, "pattern": NAME_OR_NOTHING})
}

/// Phase of a claim, type, provider or environment.
pub(crate) fn phase(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "enum": ["Pending", "Available", "Failed"]})
}

/// One CamelCase word.
pub(crate) fn reason(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 1024, "pattern": "^([A-Za-z]([A-Za-z0-9_,:]*[A-Za-z0-9_])?)?$"})
}

/// One sentence.
pub(crate) fn message(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "string", "maxLength": 32768})
}

/// A count.
pub(crate) fn count(_: &mut SchemaGenerator) -> Schema {
    json_schema!({"type": "integer", "format": "int64", "minimum": 0})
}

/// Rights on an object: kept, not evaluated.
pub(crate) fn access(generator: &mut SchemaGenerator) -> Schema {
    let items = crate::Access::json_schema(generator);
    json_schema!({"type": "array", "maxItems": 256, "items": items, "x-kubernetes-list-type": "atomic"})
}

/// Conditions: one of each type.
pub(crate) fn conditions(generator: &mut SchemaGenerator) -> Schema {
    let items = crate::Condition::json_schema(generator);
    json_schema!({
        "type": "array", "maxItems": 32, "items": items,
        "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"],
    })
}

/// An object whose fields are not ours to list.
pub(crate) fn open_object(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true })
}

/// A list of such objects.
pub(crate) fn open_list(_: &mut SchemaGenerator) -> Schema {
    json_schema!({ "type": "array", "items": { "type": "object", "x-kubernetes-preserve-unknown-fields": true } })
}
