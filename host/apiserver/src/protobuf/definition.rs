//! Definitions of custom resources in protobuf: typed clients, those of Kubernetes' own tests too, write them so.

use super::Form::{
    self, Bytes, Choice, Count, Double, Flag, Json, Map as Pairs, Message, Number, Schema, Text, Time, Truth,
};
use super::{Field, META, list, one};

/// A schema, which holds schemas.
pub(super) const SCHEMA: &[Field] = &[
    one(1, "id", Text),
    one(2, "$schema", Text),
    one(3, "$ref", Text),
    one(4, "description", Text),
    one(5, "type", Text),
    one(6, "format", Text),
    one(7, "title", Text),
    one(8, "default", Json),
    one(9, "maximum", Double),
    one(10, "exclusiveMaximum", Flag),
    one(11, "minimum", Double),
    one(12, "exclusiveMinimum", Flag),
    one(13, "maxLength", Number),
    one(14, "minLength", Number),
    one(15, "pattern", Text),
    one(16, "maxItems", Number),
    one(17, "minItems", Number),
    one(18, "uniqueItems", Flag),
    one(19, "multipleOf", Double),
    list(20, "enum", Json),
    one(21, "maxProperties", Number),
    one(22, "minProperties", Number),
    list(23, "required", Text),
    one(
        24,
        "items",
        Choice(&[one(1, "schema", Schema), list(2, "jSONSchemas", Schema)]),
    ),
    list(25, "allOf", Schema),
    list(26, "oneOf", Schema),
    list(27, "anyOf", Schema),
    one(28, "not", Schema),
    one(29, "properties", Pairs(&Schema)),
    one(30, "additionalProperties", OR_TRUTH),
    one(31, "patternProperties", Pairs(&Schema)),
    one(
        32,
        "dependencies",
        Pairs(&Choice(&[one(1, "schema", Schema), list(2, "property", Text)])),
    ),
    one(33, "additionalItems", OR_TRUTH),
    one(34, "definitions", Pairs(&Schema)),
    one(
        35,
        "externalDocs",
        Message(&[one(1, "description", Text), one(2, "url", Text)]),
    ),
    one(36, "example", Json),
    one(37, "nullable", Flag),
    one(38, "x-kubernetes-preserve-unknown-fields", Truth),
    one(39, "x-kubernetes-embedded-resource", Flag),
    one(40, "x-kubernetes-int-or-string", Flag),
    list(41, "x-kubernetes-list-map-keys", Text),
    one(42, "x-kubernetes-list-type", Text),
    one(43, "x-kubernetes-map-type", Text),
    list(44, "x-kubernetes-validations", Message(RULE)),
];

const OR_TRUTH: Form = Choice(&[one(2, "schema", Schema), one(1, "allows", Truth)]);

const RULE: &[Field] = &[
    one(1, "rule", Text),
    one(2, "message", Text),
    one(3, "messageExpression", Text),
    one(4, "reason", Text),
    one(5, "fieldPath", Text),
    one(6, "optionalOldSelf", Truth),
];

const NAMES: &[Field] = &[
    one(1, "plural", Text),
    one(2, "singular", Text),
    list(3, "shortNames", Text),
    one(4, "kind", Text),
    one(5, "listKind", Text),
    list(6, "categories", Text),
];

const COLUMN: &[Field] = &[
    one(1, "name", Text),
    one(2, "type", Text),
    one(3, "format", Text),
    one(4, "description", Text),
    one(5, "priority", Count),
    one(6, "jsonPath", Text),
];

const SCALE: &[Field] = &[
    one(1, "specReplicasPath", Text),
    one(2, "statusReplicasPath", Text),
    one(3, "labelSelectorPath", Text),
];

const VERSION: &[Field] = &[
    one(1, "name", Text),
    one(2, "served", Truth),
    one(3, "storage", Truth),
    one(4, "schema", Message(&[one(1, "openAPIV3Schema", Schema)])),
    one(
        5,
        "subresources",
        Message(&[one(1, "status", Message(&[])), one(2, "scale", Message(SCALE))]),
    ),
    list(6, "additionalPrinterColumns", Message(COLUMN)),
    one(7, "deprecated", Flag),
    one(8, "deprecationWarning", Text),
    list(9, "selectableFields", Message(&[one(1, "jsonPath", Text)])),
];

const WEBHOOK: &[Field] = &[
    one(
        2,
        "clientConfig",
        Message(&[
            one(
                1,
                "service",
                Message(&[
                    one(1, "namespace", Text),
                    one(2, "name", Text),
                    one(3, "path", Text),
                    one(4, "port", Number),
                ]),
            ),
            one(2, "caBundle", Bytes),
            one(3, "url", Text),
        ]),
    ),
    list(3, "conversionReviewVersions", Text),
];

const SPEC: &[Field] = &[
    one(1, "group", Text),
    one(3, "names", Message(NAMES)),
    one(4, "scope", Text),
    list(7, "versions", Message(VERSION)),
    one(
        9,
        "conversion",
        Message(&[one(1, "strategy", Text), one(2, "webhook", Message(WEBHOOK))]),
    ),
    one(10, "preserveUnknownFields", Flag),
];

const CONDITION: &[Field] = &[
    one(1, "type", Text),
    one(2, "status", Text),
    one(3, "lastTransitionTime", Time),
    one(4, "reason", Text),
    one(5, "message", Text),
    one(6, "observedGeneration", Count),
];

const STATUS: &[Field] = &[
    list(1, "conditions", Message(CONDITION)),
    one(2, "acceptedNames", Message(NAMES)),
    list(3, "storedVersions", Text),
    one(4, "observedGeneration", Count),
];

/// A definition.
pub(super) const DEFINITION: &[Field] = &[
    one(1, "metadata", Message(META)),
    one(2, "spec", Message(SPEC)),
    one(3, "status", Message(STATUS)),
];
