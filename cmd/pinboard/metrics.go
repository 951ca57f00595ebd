package main

import (
	"context"
	"net"
	"net/http"
	"os"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"golang.org/x/net/netutil"

	"github.com/pinboard-go/pinboard"
)

const (
	// scrapers bounds the connections to the metrics, and scrapesAtOnce the
	// collections: whoever reaches the port needs no credential.
	scrapers      = 32
	scrapesAtOnce = 4
	// scrapeTime bounds one, the writing of its answer included.
	scrapeTime = 10 * time.Second
)

// metricsServer tells metrics on a listener of its own, where no client's namespace
// is and a firewall can tell who asks. Its zero value tells none.
type metricsServer struct {
	server *http.Server
	done   chan struct{}
}

// tellMetrics serves the metrics of the process and its connections, and of the
// Pinboard that is made with the environment's options; none if the environment
// names no address.
func tellMetrics(ctx context.Context, env *pinboard.Environment, conns *connections, log *zap.Logger) (*metricsServer, error) {
	if env.MetricsAddr == "" {
		return &metricsServer{}, nil
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "pinboard_connections", Help: "Connections of clients that are open.",
		}, func() float64 { total, _ := conns.quota.Use(); return float64(total) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pinboard_connections_turned_away_total", Help: "Connections that were one too many.",
		}, func() float64 { return float64(conns.refused.Load()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "pinboard_connections_cut_total", Help: "Connections that were cut for one of a network with fewer.",
		}, func() float64 { return float64(conns.cut.Load()) }),
	)
	env.Options.Metrics = registry
	listener, err := (&net.ListenConfig{}).Listen(ctx, "tcp", env.MetricsAddr)
	if err != nil {
		return nil, &notListening{"PINBOARD_METRICS_ADDR", err}
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(registry, promhttp.HandlerOpts{
		ErrorLog: zap.NewStdLog(log.Named("metrics")), MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTime,
	}))
	m := &metricsServer{done: make(chan struct{}), server: &http.Server{
		Handler: mux, ErrorLog: zap.NewStdLog(log.Named("metrics")),
		ReadTimeout: scrapeTime, WriteTimeout: 2 * scrapeTime, IdleTimeout: 2 * time.Minute, MaxHeaderBytes: 16 << 10,
	}}
	go func() {
		defer close(m.done)
		_ = m.server.Serve(netutil.LimitListener(listener, scrapers)) // ends with close
	}()
	log.Info("metrics are told", zap.Stringer("addr", listener.Addr()))
	return m, nil
}

func (m *metricsServer) close() {
	if m.server != nil {
		_ = m.server.Close()
		<-m.done
	}
}

// accessLog writes lines of JSON to standard output. It is not zap.NewProduction,
// which leaves out what is said often.
func accessLog() *zap.Logger {
	encoder := zapcore.NewJSONEncoder(zap.NewProductionEncoderConfig())
	return zap.New(zapcore.NewCore(encoder, zapcore.Lock(os.Stdout), zap.InfoLevel))
}
