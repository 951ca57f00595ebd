package worker

import (
	"errors"
	"fmt"
	"maps"
	"net/http"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/pinboard-go/pinboard/internal/wire"
)

// HostOptions are what one namespace has different from the others. A zero value
// means what Options say.
type HostOptions struct {
	// Env names this namespace's deployment (protocol §7). It needs
	// Options.Hostname.
	Env string
	// IdleTimeout and DetachedTimeout are those of Options, for this namespace.
	IdleTimeout     time.Duration
	DetachedTimeout time.Duration
	// KeepPlacementOnIdle is that of Options, for this namespace; either of
	// them is enough.
	KeepPlacementOnIdle bool
	// MaxInstances bounds the instances of this namespace. Default: only
	// Options.MaxInstances bounds them.
	MaxInstances int
	// Middleware wraps the way to all instances of the namespace, on their side
	// of pinboard's checks: CallerFrom and TargetFrom tell it who calls whom,
	// and a request that it answers itself, such as one that it denies,
	// activates nothing and gives the placement back. Past the lease its answers
	// count no more than an instance's. The path is the one that the instance
	// sees. A ResponseWriter that it wraps around the one it gets needs an Unwrap
	// method (http.ResponseController): without one streams are not flushed, and an
	// upgrade to WebSocket gets a 500 and an error in the log, since the connection
	// can't be handed over. It is called once, by HostWith. Default: none.
	Middleware func(next http.Handler) http.Handler
}

// host is a namespace and what serves it.
type host struct {
	namespace string
	construct Constructor
	opts      HostOptions         // complete
	handler   http.Handler        // the middleware, if there is one, then the instance
	live      int                 // instances; guarded by the directory's lock
	duration  prometheus.Observer // of its requests
}

// Host serves a namespace, such as "/counters". It fails for a name that
// protocol §1 does not allow, for one that is taken, and after Start.
func (w *Worker) Host(namespace string, construct Constructor) error {
	return w.HostWith(namespace, HostOptions{}, construct)
}

// HostWith is Host with options of the namespace's own. Its error names every
// one that is wrong.
func (w *Worker) HostWith(namespace string, opts HostOptions, construct Constructor) error {
	if err := w.addHost(namespace, opts, construct); err != nil {
		return fmt.Errorf("worker: host %q: %w", namespace, err)
	}
	return nil
}

func (w *Worker) addHost(namespace string, opts HostOptions, construct Constructor) error {
	if err := wire.CheckNamespace(namespace); err != nil {
		return err
	}
	if construct == nil {
		return errors.New("there is no constructor")
	}
	opts, err := opts.complete(&w.opts)
	if err != nil {
		return err
	}
	h := &host{namespace: namespace, construct: construct, opts: opts}
	if opts.Middleware != nil {
		if h.handler = opts.Middleware(w.fromMiddleware(h)); h.handler == nil {
			return errors.New("HostOptions.Middleware returned no handler")
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.started {
		return errors.New("the worker has started")
	}
	hosts := maps.Clone(*w.hosts.Load())
	if hosts[namespace] != nil {
		return errors.New("the namespace is taken")
	}
	h.duration = w.metrics.host(namespace)
	hosts[namespace] = h
	w.hosts.Store(&hosts)
	return nil
}

// complete returns a copy in which what all namespaces share replaces zero
// values.
func (o HostOptions) complete(all *Options) (HostOptions, error) {
	var faults []error
	fault := func(wrong bool, text string) {
		if wrong {
			faults = append(faults, errors.New("HostOptions."+text))
		}
	}
	fault(o.Env != "" && all.Hostname == "", "Env needs Options.Hostname")
	fault(o.IdleTimeout < 0, "IdleTimeout is negative")
	fault(o.DetachedTimeout < 0, "DetachedTimeout is negative")
	fault(o.MaxInstances < 0, "MaxInstances is negative")
	if o.IdleTimeout == 0 {
		o.IdleTimeout = all.IdleTimeout
	}
	if o.DetachedTimeout == 0 {
		o.DetachedTimeout = all.DetachedTimeout
	}
	o.KeepPlacementOnIdle = o.KeepPlacementOnIdle || all.KeepPlacementOnIdle
	return o, errors.Join(faults...)
}

func (w *Worker) host(namespace string) *host { return (*w.hosts.Load())[namespace] }

// envs returns the deployments that namespaces name for themselves, nil if none
// does.
func (w *Worker) envs() map[string]string {
	var envs map[string]string
	for namespace, h := range *w.hosts.Load() {
		if h.opts.Env == "" {
			continue
		}
		if envs == nil {
			envs = map[string]string{}
		}
		envs[namespace] = h.opts.Env
	}
	return envs
}
