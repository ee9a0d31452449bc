//! The keys of the chart's values: those of `privateNodes` one by one, the others by name.

use super::shape::Shape::{self, Amounts, Fields, Flag, List, Opaque, OpenMap, Text, Texts, Whole};

/// The whole text.
pub(super) static VALUES: Shape = Fields(&[
    ("controlPlane", CONTROL_PLANE),
    ("privateNodes", PRIVATE_NODES),
    ("deletion", Opaque),
    ("deploy", Opaque),
    ("experimental", Opaque),
    ("exportKubeConfig", Opaque),
    ("external", Opaque),
    ("global", Opaque),
    ("integrations", Opaque),
    ("license", Opaque),
    ("logging", Opaque),
    ("networking", Opaque),
    ("platform", Opaque),
    ("plugin", Opaque),
    ("plugins", Opaque),
    ("policies", Opaque),
    ("pro", Opaque),
    ("rbac", Opaque),
    ("serviceCIDR", Opaque),
    ("sleep", Opaque),
    ("sleepMode", Opaque),
    ("snapshots", Opaque),
    ("sync", Opaque),
    ("telemetry", Opaque),
]);

/// Opaque but for the one field that machines need.
const CONTROL_PLANE: Shape = Shape::Open(&[("endpoint", Text)]);

const PRIVATE_NODES: Shape = Fields(&[
    ("enabled", Flag),
    ("defaultProfile", Text),
    ("kubelet", Fields(&[("config", OpenMap)])),
    ("autoUpgrade", AUTO_UPGRADE),
    ("joinNode", JOIN_NODE),
    (
        "vpn",
        Fields(&[("enabled", Flag), ("nodeToNode", Fields(&[("enabled", Flag)]))]),
    ),
    ("daemon", DAEMON),
    ("autoNodes", List(&AUTO_NODES)),
]);

const AUTO_UPGRADE: Shape = Fields(&[
    ("enabled", Flag),
    ("concurrency", Whole),
    ("image", Text),
    ("imagePullPolicy", Text),
    ("nodeSelector", Texts),
    ("binariesPath", Text),
    ("cniBinariesPath", Text),
    ("podSecurityContext", OpenMap),
    ("containerSecurityContext", OpenMap),
]);

const JOIN_NODE: Shape = Fields(&[
    ("preInstallCommands", List(&Text)),
    ("preJoinCommands", List(&Text)),
    ("postJoinCommands", List(&Text)),
    (
        "containerd",
        Fields(&[
            ("enabled", Flag),
            (
                "registry",
                Fields(&[("configPath", Text), ("mirrors", OpenMap), ("auth", OpenMap)]),
            ),
            ("pauseImage", Text),
        ]),
    ),
    ("caCertPath", Text),
    ("skipPhases", List(&Text)),
    (
        "nodeRegistration",
        Fields(&[
            ("criSocket", Text),
            (
                "kubeletExtraArgs",
                List(&Fields(&[("name", Text), ("value", Text)])),
            ),
            ("taints", List(&TAINT)),
            ("ignorePreflightErrors", List(&Text)),
            ("imagePullPolicy", Text),
        ]),
    ),
]);

const DAEMON: Shape = Fields(&[
    ("enabled", Flag),
    (
        "controlPlaneLoadBalancer",
        Fields(&[("enabled", Flag), ("kubeProxy", Flag), ("port", Whole)]),
    ),
]);

const AUTO_NODES: Shape = Fields(&[
    ("provider", Text),
    ("properties", Texts),
    ("static", List(&STATIC)),
    ("dynamic", List(&DYNAMIC)),
]);

const STATIC: Shape = Fields(&[
    ("name", Text),
    ("quantity", Whole),
    ("nodeTypeSelector", List(&SELECTOR)),
    ("nodeLabels", Texts),
    ("taints", List(&TAINT)),
    ("properties", Texts),
    ("profile", Text),
    ("terminationGracePeriod", Text),
]);

const DYNAMIC: Shape = Fields(&[
    ("name", Text),
    ("nodeTypeSelector", List(&SELECTOR)),
    ("nodeLabels", Texts),
    ("taints", List(&TAINT)),
    ("properties", Texts),
    ("profile", Text),
    ("terminationGracePeriod", Text),
    ("limits", Amounts),
    (
        "disruption",
        Fields(&[
            ("consolidateAfter", Text),
            ("consolidationPolicy", Text),
            (
                "budgets",
                List(&Fields(&[
                    ("nodes", Text),
                    ("schedule", Text),
                    ("duration", Text),
                ])),
            ),
        ]),
    ),
    ("expireAfter", Text),
    ("weight", Whole),
]);

const SELECTOR: Shape = Fields(&[
    ("property", Text),
    ("operator", Text),
    ("value", Text),
    ("values", List(&Text)),
]);

const TAINT: Shape = Fields(&[("key", Text), ("value", Text), ("effect", Text)]);
