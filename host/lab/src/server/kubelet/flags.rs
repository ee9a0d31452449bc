//! The flags that a kubelet of this version takes. A kubelet does not start with any other.

/// Those that are taken here and not acted upon, separated by spaces.
const OTHERS: &str = "\
    address allowed-unsafe-sysctls anonymous-auth application-metrics-count-limit \
    authentication-token-webhook authentication-token-webhook-cache-ttl authorization-mode \
    authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl \
    bootstrap-kubeconfig cert-dir cgroup-driver cgroup-root cgroups-per-qos client-ca-file cloud-config \
    cloud-provider cluster-dns cluster-domain config config-dir container-log-max-files \
    container-log-max-size container-runtime-endpoint contention-profiling cpu-cfs-quota \
    cpu-cfs-quota-period cpu-manager-policy cpu-manager-policy-options cpu-manager-reconcile-period \
    enable-controller-attach-detach enable-debugging-handlers enable-server enforce-node-allocatable \
    event-burst event-qps eviction-hard eviction-max-pod-grace-period eviction-minimum-reclaim \
    eviction-pressure-transition-period eviction-soft eviction-soft-grace-period exit-on-lock-contention \
    experimental-allocatable-ignore-eviction fail-cgroupv1 fail-swap-on feature-gates \
    file-check-frequency hairpin-mode healthz-bind-address healthz-port http-check-frequency \
    image-credential-provider-bin-dir image-credential-provider-config image-gc-high-threshold \
    image-gc-low-threshold image-service-endpoint kernel-memcg-notification kube-api-burst \
    kube-api-content-type kube-api-qps kube-reserved kube-reserved-cgroup kubeconfig kubelet-cgroups \
    local-storage-capacity-isolation lock-file log-flush-frequency logging-format \
    make-iptables-util-chains manifest-url manifest-url-header max-open-files memory-manager-policy \
    minimum-container-ttl-duration minimum-image-ttl-duration node-status-max-images \
    node-status-update-frequency oom-score-adj pod-cidr pod-infra-container-image pod-manifest-path \
    pod-max-pids pods-per-core port protect-kernel-defaults qos-reserved read-only-port register-node \
    registry-burst registry-qps reserved-cpus reserved-memory resolv-conf root-dir rotate-certificates \
    rotate-server-certificates runonce runtime-cgroups runtime-request-timeout seccomp-default \
    serialize-image-pulls streaming-connection-idle-timeout sync-frequency system-cgroups \
    system-reserved system-reserved-cgroup tls-cert-file tls-cipher-suites tls-min-version \
    tls-private-key-file topology-manager-policy topology-manager-policy-options topology-manager-scope \
    v vmodule volume-plugin-dir volume-stats-agg-period\
    ";

/// Whether a kubelet takes a flag that is not acted upon here.
pub(super) fn is_known(flag: &str) -> bool {
    !flag.is_empty() && OTHERS.split_whitespace().any(|known| known == flag)
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_flag_is_known_by_its_whole_name() {
        assert!(super::is_known("system-reserved"));
        assert!(super::is_known("v"));
        for unknown in ["", "system", "system-reserved cpu", "system-reserve"] {
            assert!(!super::is_known(unknown), "{unknown}");
        }
    }
}
