// Package deploy checks the Dockerfile and the examples for Kubernetes, docker
// compose, Prometheus and Grafana as far as that goes without a cluster and without
// an engine.
package deploy
