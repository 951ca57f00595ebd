package redis

import (
	"context"
	"fmt"
	"net/url"
	"slices"
	"strings"

	"github.com/pinboard-go/pinboard/internal/store"
)

// maxGiveWay is how many sessions of others one script displaces or drains at
// most: about a millisecond of Redis' time. Where there are more, those come
// first and the registration itself last.
const maxGiveWay = 100

// classes tells the class of a registration in each of its bindings, as
// lib_fleet.lua wants it: one a line, in the order of the namespaces.
func classes(r *store.Registration) string {
	lines := make([]string, len(r.Namespaces))
	for i, ns := range r.Namespaces {
		lines[i] = fmt.Sprintf("%s %d.%s", escape(store.Bind(r.Hostname, ns)), r.Epoch, escape(r.EnvOf(ns)))
	}
	return strings.Join(lines, "\n")
}

// refusal is what the outcome of check.lua and register.lua means; nil for
// 'ok'. Others are followed by more in the answer.
func refusal(r *store.Registration, outcome string, a *answer) error {
	switch {
	case a.err != nil:
		return a.err
	case outcome == "ok":
		return nil
	case outcome == "secret":
		return store.ErrOtherSecret
	case outcome == "overtaken":
		return store.ErrOvertaken
	}
	n := a.int()
	epoch, env := a.int(), a.text()
	theirs, err := url.PathUnescape(env) // as escape wrote it
	a.fail(err)
	if n < 0 || n >= int64(len(r.Namespaces)) || outcome != "lower" && outcome != "env" {
		a.fail(errForm)
	}
	if a.err != nil {
		return a.err
	}
	ns := r.Namespaces[n]
	if outcome == "lower" {
		return store.LowerEpoch(store.Bind(r.Hostname, ns), r.Epoch, epoch)
	}
	return store.OtherEnv(store.Bind(r.Hostname, ns), r.EnvOf(ns), theirs)
}

// other is a session that gives way to a registration.
type other struct {
	state
	displaced bool // else it lost its advertise URL, or is drained
}

func readOthers(a *answer) (others []other) {
	for a.more() {
		o := other{state: state{sid: a.text(), version: a.int()}}
		why := a.text()
		o.stopped, o.displaced = why != "drained", why == "displaced"
		o.bindings = a.lines()
		others = append(others, o)
	}
	return others
}

// gaveWay sorts the sessions by what was done to them.
func gaveWay(others []other) (displaced, drained []string) {
	for _, o := range others {
		switch {
		case o.displaced:
			displaced = append(displaced, o.sid)
		case !o.stopped:
			drained = append(drained, o.sid)
		}
	}
	slices.Sort(displaced)
	slices.Sort(drained)
	return displaced, drained
}

// giveWay tells the buckets of the sessions. One that has ended meanwhile takes
// no placements either.
func (d *directory) giveWay(ctx context.Context, others []other) error {
	var calls []call
	for _, o := range others {
		calls = append(calls, o.calls(d.keys.buckets(o.bindings))...)
	}
	for some := range slices.Chunk(calls, batch) {
		if err := firstError(d.runAll(ctx, some)); err != nil {
			return err
		}
	}
	return nil
}
