// The definitions of the Prometheus operator's kinds, one of which the host's manifests use. Only files of the module are read.
module hostler/tests/kubernetes/prometheus

go 1.26.0

require github.com/prometheus-operator/prometheus-operator v0.85.0
