package pinboard

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"

	"github.com/pinboard-go/pinboard/internal/store"
)

// A request is for the binding of its namespace under its host name, if there
// is one, else for the one without (protocol §7). The store knows; a node
// remembers what it was told, so that each look-up is one question, and is
// corrected where that is out of date.

const (
	// maxPicks bounds how often a request goes from one binding to the other:
	// more than once only where workers come and go in that moment.
	maxPicks = 3
	// maxBound bounds the names remembered. Only workers bind names.
	maxBound = 10_000
)

// What makes a look-up pick the other binding: the namespace is bound under the
// host name, and nobody serves the binding that was asked. A client sees the
// first only if workers come and go faster than they are looked up.
var (
	errElsewhere = notNow("the namespace has just been bound under the host name", 0)
	errVacant    = refuse(http.StatusNotFound, "unknown namespace")
)

// boundNames remembers bindings under host names. The zero value knows none.
type boundNames struct {
	any   atomic.Bool // there are names
	mu    sync.Mutex
	names map[string]struct{}
}

func (b *boundNames) has(binding string) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	_, ok := b.names[binding]
	return ok
}

func (b *boundNames) note(binding string, bound bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case !bound:
		delete(b.names, binding)
		b.any.Store(len(b.names) > 0)
		return
	case b.names == nil, len(b.names) >= maxBound:
		b.names = map[string]struct{}{}
	}
	b.names[binding] = struct{}{}
	b.any.Store(true)
}

// under returns the instance as the placer and the store know it: its namespace
// names the binding under the host name.
func (i instance) under(hostname string) instance {
	i.namespace = store.Bind(hostname, i.namespace)
	return i
}

// pick chooses the binding to ask first.
func (p *placer) pick(a ask) ask {
	if a.host == "" || !p.bound.any.Load() {
		return a
	}
	if bound := a.under(a.host); p.bound.has(bound.namespace) {
		a.instance = bound
	}
	return a
}

// learn finds out whether the namespace is bound under the host name, where this
// node does not know of it, and reports whether it is. It places nothing.
func (p *placer) learn(ctx context.Context, a ask) bool {
	bound := a.under(a.host)
	if a.host == "" || p.bound.has(bound.namespace) {
		return false
	}
	found := false
	_ = p.gate.do(ctx, func(ctx context.Context) error { // unknown is no
		res, err := p.store.Resolve(ctx, store.Request{
			Namespace: a.namespace, ID: a.id, Unless: a.host, View: lookOnly, BalanceFactor: p.factor,
		})
		found = err == nil && res.Outcome == store.Elsewhere
		return err
	})
	if found {
		p.bound.note(bound.namespace, true)
	}
	return found
}

// pickAgain changes to the other binding if the answer says so.
func (p *placer) pickAgain(a *ask, answer error) bool {
	hostname, namespace := store.Unbind(a.namespace)
	plain := instance{namespace, a.id}
	switch {
	case errors.Is(answer, errElsewhere):
		a.instance, a.settled = plain.under(a.host), false
		p.bound.note(a.namespace, true)
	case errors.Is(answer, errVacant) && hostname != "":
		p.bound.note(a.namespace, false)
		a.instance, a.settled = plain, true
	default:
		return false
	}
	return true
}

// unless is the host name that goes before the binding asked for.
func (a *ask) unless() string {
	if hostname, _ := store.Unbind(a.namespace); hostname != "" || a.settled {
		return ""
	}
	return a.host
}
