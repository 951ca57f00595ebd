package pinboard

import (
	"cmp"
	"context"
	"net/http"
	"slices"

	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
)

// The states of a worker, as the overview tells them.
const (
	stateReady       = "ready"       // takes placements
	stateRegistering = "registering" // its registration is being answered
	stateDraining    = "draining"    // by its own flag or an operator's
	stateDegraded    = "degraded"    // its advertise URL fails the probe
	// stateLeaving: displaced by a higher worker epoch, or by another process on
	// its advertise URL. It keeps its ids until its lease ends.
	stateLeaving = "leaving"
)

func stateOf(s *store.Session) string {
	switch {
	case s.Stopped:
		return stateLeaving
	case s.Draining || s.Drain.Draining:
		return stateDraining
	case s.Degraded:
		return stateDegraded
	case !s.Active:
		return stateRegistering
	}
	return stateReady
}

// namespaceCount is a namespace, under a host name perhaps, in the overview.
type namespaceCount struct {
	Namespace  string `json:"namespace"`
	Hostname   string `json:"hostname,omitempty"`
	Placements int    `json:"placements"`
	// Workers counts the live ones, Ready those that take placements, and Headroom
	// is what these have: a worker that serves several namespaces counts in each.
	Workers  int     `json:"workers"`
	Ready    int     `json:"ready"`
	Headroom float64 `json:"headroom"`
}

// workerCount is a worker in the overview.
type workerCount struct {
	ClientID   string  `json:"clientId"`
	SessionID  string  `json:"sessionId"`
	Hostname   string  `json:"hostname,omitempty"`
	State      string  `json:"state"`
	Headroom   float64 `json:"headroom"`
	Placements int     `json:"placements"`
	// Namespaces are its placements by namespace.
	Namespaces map[string]int `json:"namespaces"`
}

// overview counts (protocol §4). Placements are those with a live owner, and only
// those of namespaces that the caller may see.
func (g *registry) overview(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	sessions, err := g.store.Live(ctx)
	if err != nil {
		return err
	}
	counts, err := g.store.Counts(ctx, sessions)
	if err != nil {
		return err
	}
	workers := []workerCount{}
	byBinding := map[string]*namespaceCount{}
	total := 0
	for i := range sessions {
		s := &sessions[i]
		one := workerCount{
			ClientID: s.ClientID, SessionID: s.ID, Hostname: s.Hostname, State: stateOf(s), Headroom: s.Headroom, Namespaces: map[string]int{},
		}
		for j, ns := range s.Namespaces {
			if !c.who.AllowsNamespace(ns) {
				continue
			}
			one.Placements += counts[i][j]
			one.Namespaces[ns] = counts[i][j]
			binding := store.Bind(s.Hostname, ns)
			if byBinding[binding] == nil {
				byBinding[binding] = &namespaceCount{Namespace: ns, Hostname: s.Hostname}
			}
			byBinding[binding].add(&one, counts[i][j])
		}
		if len(one.Namespaces) > 0 {
			workers = append(workers, one)
			total += one.Placements
		}
	}
	namespaces := make([]*namespaceCount, 0, len(byBinding))
	for _, n := range byBinding {
		namespaces = append(namespaces, n)
	}
	slices.SortFunc(namespaces, func(a, b *namespaceCount) int {
		return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Hostname, b.Hostname))
	})
	slices.SortFunc(workers, func(a, b workerCount) int { return cmp.Compare(a.ClientID, b.ClientID) })
	jsonbody.Write(w, http.StatusOK, struct {
		Placements int               `json:"placements"`
		Namespaces []*namespaceCount `json:"namespaces"`
		Workers    []workerCount     `json:"workers"`
	}{total, namespaces, workers})
	return nil
}

func (n *namespaceCount) add(worker *workerCount, placements int) {
	n.Placements += placements
	n.Workers++
	if worker.State == stateReady {
		n.Ready++
		n.Headroom += worker.Headroom
	}
}
