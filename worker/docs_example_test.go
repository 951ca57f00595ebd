package worker_test

import (
	"context"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/pinboard-go/pinboard/worker"
)

// A worker's metrics, on a port of their own.
func ExampleOptions_metrics() {
	serve := func(ctx context.Context) error {
		registry := prometheus.NewRegistry()
		w, err := worker.New(worker.Options{Registerer: registry})
		if err != nil {
			return err
		}
		go func() { _ = http.ListenAndServe(":9090", promhttp.HandlerFor(registry, promhttp.HandlerOpts{})) }()
		return w.ListenAndServe(ctx, ":8000")
	}
	_ = serve
}

// Several workers in one process.
func ExampleOptions_several() {
	registry := prometheus.NewRegistry()
	_ = worker.Options{
		Registerer: prometheus.WrapRegistererWith(prometheus.Labels{"worker": "a"}, registry),
	}
}

// A worker beside other routes.
func ExampleWorker_mounted() {
	routes := func(mux *http.ServeMux, w *worker.Worker, registry *prometheus.Registry) {
		mux.Handle("/pins/", w)
		mux.Handle("/metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{}))
		mux.Handle("/ready", w.ReadyHandler())
	}
	_ = routes
}
