package redis

import (
	"cmp"
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

const (
	// maxAgain bounds how often a placement is asked for again because lapsed
	// sessions had to be cleared first, and
	maxAgain = 1000
	// clearTogether how many are cleared each time.
	clearTogether = 32
)

// What resolve.lua answers besides the outcomes of store.Outcome.
const (
	outcomeAgain   store.Outcome = 0
	outcomeStepped store.Outcome = 8
)

// Resolve asks one script, together with others that ask at the same time; see
// resolve.lua and gathering.
func (d *directory) Resolve(ctx context.Context, req store.Request) (store.Result, error) {
	bucket := d.keys.of(store.Bind(req.Hostname, req.Namespace), req.ID)
	set := false
	for range maxAgain {
		a, sent := d.resolve(ctx, bucket, req, set)
		outcome := store.Outcome(a.int())
		switch {
		case a.err != nil:
			return store.Result{}, a.err
		case outcome == outcomeStepped:
			set = set || time.Since(sent) < lateness // else it may just have come late
			continue
		case outcome == outcomeAgain:
			if err := d.clear(ctx, req, a.text()); err != nil {
				return store.Result{}, err
			}
			continue
		case outcome == store.UnknownNamespace:
			// There may be a bucket elsewhere, for nodes of another layout.
			if err := d.agree(ctx); err != nil {
				return store.Result{}, err
			}
		}
		res := result(outcome, a)
		res.ClockSet = set && outcome == store.Quarantined
		if outcome == store.Placed || outcome == store.Quarantined {
			d.clocks.heard(bucket, sent, a.int())
		}
		switch outcome {
		case store.Placed:
			res.Why, res.Former = store.ParseWhy(a.text()), a.text()
		case store.Quarantined:
			res.Begun = a.flag()
		}
		if outcome == store.UnknownNamespace && req.Hostname == "" {
			res.Left = 0
		}
		return res, a.err
	}
	return store.Result{}, fmt.Errorf("redis resolve: no end of lapsed sessions in %s", req.Namespace)
}

// clear clears a lapsed session that a placement met, and others.
func (d *directory) clear(ctx context.Context, req store.Request, sid string) error {
	b := d.keys.of(store.Bind(req.Hostname, req.Namespace), req.ID)
	return d.run(ctx, lapsedScript.with(
		[]string{b.meta(), b.sessions(), b.candidates(), b.none()}, string(b), sid, clearTogether,
	)).err
}

// resolveCall asks for ids that are alike. The limit is the highest time that the
// bucket's clock can have reached, 0 if that is not known.
func (d *directory) resolveCall(key alike, limit int64, reqs ...store.Request) call {
	const shared, each, rare = 6, 4, 3 // see resolve.lua
	if key.set {
		limit = -1
	}
	args := make([]string, 0, shared+each*len(reqs)+rare)
	args = append(args, string(key.bucket), strconv.FormatInt(key.view, 10), strconv.FormatFloat(key.factor, 'g', -1, 64),
		strconv.FormatInt(limit, 10), strconv.FormatInt(d.lease, 10), d.layout)
	for _, one := range reqs {
		dice := make([]byte, 0, 36)
		for _, n := range one.Dice {
			dice = append(strconv.AppendUint(dice, uint64(n), 10), ' ')
		}
		dice = append(dice, cmp.Or(one.PreferredBy, store.ByAffinity).Letter()...)
		args = append(args, one.ID, strconv.Itoa(d.keys.leaf(one.ID)), one.Preferred, string(dice))
	}
	if r := key.refused; r != nil {
		args = append(args, key.unless, strconv.FormatInt(r.Epoch, 10)+" "+r.SessionID, r.ClientID)
	} else if key.unless != "" {
		args = append(args, key.unless)
	}
	return call{script: resolveScript, keys: []string{key.bucket.meta(), key.bucket.candidates(), key.bucket.none()}, args: args}
}

func result(outcome store.Outcome, a *answer) store.Result {
	res := store.Result{Outcome: outcome}
	switch outcome {
	case store.Owned, store.Placed:
		res.SessionID, res.Epoch, res.Left, res.Stopped = a.text(), a.int(), a.duration(), a.flag()
	case store.Quarantined, store.UnknownNamespace:
		res.Left = a.duration()
	case store.NoCandidate, store.StaleView, store.Elsewhere:
	default:
		a.fail(errForm)
	}
	return res
}

// Candidates reads the candidates of the id's bucket.
func (d *directory) Candidates(ctx context.Context, binding, id string) (store.View, error) {
	bucket := d.keys.of(binding, id)
	a := d.run(ctx, candidatesScript.with([]string{bucket.meta(), bucket.candidates()}, string(bucket)))
	view := store.View{Version: a.int()}
	for a.more() {
		view.Candidates = append(view.Candidates, store.Candidate{SessionID: a.text(), ClientID: a.text(), Headroom: a.float()})
	}
	return view, a.err
}

// Quarantine asks all buckets that ever were.
func (d *directory) Quarantine(ctx context.Context) (time.Duration, error) {
	a := d.run(ctx, namespacesScript.with([]string{d.keys.fleet().namespaces()}))
	var calls []call
	for a.more() {
		for _, bucket := range d.keys.buckets([]string{a.text()}) {
			calls = append(calls, quarantineScript.with([]string{bucket.meta()}))
		}
	}
	if a.err != nil {
		return 0, a.err
	}
	longest := time.Duration(0)
	answers := d.runAll(ctx, calls)
	for _, a := range answers {
		longest = max(longest, a.duration())
	}
	return longest, firstError(answers)
}
