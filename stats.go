package pinboard

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"sync"
	"sync/atomic"
	"time"

	"github.com/pinboard-go/pinboard/internal/attest"
	"github.com/pinboard-go/pinboard/internal/jsonbody"
	"github.com/pinboard-go/pinboard/internal/store"
	"github.com/pinboard-go/pinboard/internal/upstream"
	"github.com/pinboard-go/pinboard/internal/wire"
	"github.com/pinboard-go/pinboard/passport"
)

const (
	// statsTime bounds how long one worker may take for its stats, and
	statsTime = 2 * time.Second
	// statsWithin how long all of them may.
	statsWithin = 3500 * time.Millisecond
	// maxStats bounds the stats of one worker, and maxAllStats those in one
	// answer, in bytes.
	maxStats    = 4 << 20
	maxAllStats = 32 << 20
	// asksAtOnce bounds how many workers a node asks at once, and statsAtOnce for
	// how many calls.
	asksAtOnce  = 32
	statsAtOnce = 4
)

// asking bounds what a node asks of workers for operators.
type asking struct {
	calls, workers chan struct{}
	most           int64 // bytes of one answer
}

func newAsking() asking {
	return asking{calls: make(chan struct{}, statsAtOnce), workers: make(chan struct{}, asksAtOnce), most: maxAllStats}
}

// stats asks every worker for its stats, side by side (protocol §§3, 4), or the one
// that the query names.
func (g *registry) stats(ctx context.Context, w http.ResponseWriter, c *registryCall) error {
	values, err := url.ParseQuery(c.query)
	if err != nil {
		return malformed(errQuery)
	}
	select {
	case g.asking.calls <- struct{}{}:
		defer func() { <-g.asking.calls }()
	default:
		return notNow("workers are being asked for other operators", time.Second)
	}
	ctx, cancel := context.WithTimeout(ctx, statsWithin)
	defer cancel()
	sessions, err := g.store.Live(ctx)
	if err != nil {
		return err
	}
	only, named := values.Get("clientId"), values.Has("clientId")
	answers := map[string]json.RawMessage{}
	var mu sync.Mutex
	var all atomic.Int64
	var group sync.WaitGroup
	for _, s := range sessions {
		namespaces := visible(c.who, s.Namespaces)
		// Who lost its advertise URL must not be asked there: another process is.
		if len(namespaces) == 0 || s.Stopped || named && s.ClientID != only {
			continue
		}
		group.Go(func() {
			answer := g.statsOf(ctx, c.who, &s, &all)
			mu.Lock()
			defer mu.Unlock()
			answers[s.ClientID] = answer
		})
	}
	group.Wait()
	if named && len(answers) == 0 {
		return unknownClient(store.ErrNoClient)
	}
	jsonbody.Write(w, http.StatusOK, answers)
	return nil
}

// statsOf returns one worker's stats, or {"error"}. all counts the bytes of all
// answers so far.
func (g *registry) statsOf(ctx context.Context, who *passport.Identity, s *store.Session, all *atomic.Int64) json.RawMessage {
	select {
	case g.asking.workers <- struct{}{}:
		defer func() { <-g.asking.workers }()
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		return statsError("not asked: other workers took too long")
	}
	text, err := g.probe.stats(ctx, s)
	if err != nil {
		return statsError(err.Error())
	}
	if all.Add(int64(len(text))) > g.asking.most {
		return statsError("the stats of all workers are too large: ask for this one with clientId")
	}
	text, err = visibleStats(who, s, text)
	if err != nil {
		return statsError(err.Error())
	}
	return text
}

func statsError(message string) json.RawMessage {
	text, _ := json.Marshal(wire.Error{Error: message}) // a text can be encoded
	return text
}

// stats asks a worker, by the rules of a probe, for its stats. The errors are for
// the caller.
func (p *prober) stats(ctx context.Context, s *store.Session) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, p.telling)
	defer cancel()
	attestation, err := attest.Mint(s.Secret, attest.Claims{Audience: s.ID}, time.Now())
	if err != nil {
		return nil, fmt.Errorf("ask for stats: %w", err)
	}
	fields, _ := upstream.AppendField(nil, wire.HeaderAttestation, attestation)
	b := &backend{rules: s.BackendHosts, pinned: s.BackendAddr}
	res, err := p.get(ctx, b, s.AdvertiseURL, wire.PathStats, s.Secret, fields)
	if err != nil {
		return nil, asRefusal(err)
	}
	defer res.Close()
	if res.Status != http.StatusOK {
		return nil, fmt.Errorf("the worker answers with status %d", res.Status)
	}
	text, tooLong, err := read(res, maxStats)
	switch {
	case err != nil:
		return nil, errUnreachable
	case tooLong:
		return nil, fmt.Errorf("the worker's stats are larger than %d bytes", maxStats)
	}
	return text, nil
}

// visibleStats returns what the caller may see of a worker's stats: nothing of
// other namespaces, nor what this page does not know, where there are some that
// the caller may not see.
func visibleStats(who *passport.Identity, s *store.Session, text []byte) (json.RawMessage, error) {
	errForm := fmt.Errorf("the worker's stats are malformed")
	var stats map[string]json.RawMessage
	if json.Unmarshal(text, &stats) != nil || stats == nil {
		return nil, errForm
	}
	if len(visible(who, s.Namespaces)) == len(s.Namespaces) {
		return text, nil
	}
	shown := map[string]any{}
	for _, name := range []string{"draining", "leaseFlaps", "reregistrations", "process"} {
		if value, ok := stats[name]; ok {
			shown[name] = value
		}
	}
	var namespaces map[string]json.RawMessage
	var instances []json.RawMessage
	if json.Unmarshal(orNull(stats["namespaces"]), &namespaces) != nil || json.Unmarshal(orNull(stats["instances"]), &instances) != nil {
		return nil, errForm
	}
	seen, rows := map[string]json.RawMessage{}, []json.RawMessage{}
	for ns, value := range namespaces {
		if who.AllowsNamespace(ns) {
			seen[ns] = value
		}
	}
	for _, row := range instances {
		var of map[string]json.RawMessage
		var ns string
		if json.Unmarshal(row, &of) == nil && json.Unmarshal(orNull(of["namespace"]), &ns) == nil && who.AllowsNamespace(ns) {
			rows = append(rows, row)
		}
	}
	shown["namespaces"], shown["instances"] = seen, rows
	return json.Marshal(shown)
}

// orNull is for values that may be missing.
func orNull(value json.RawMessage) json.RawMessage {
	if value == nil {
		return json.RawMessage("null")
	}
	return value
}
