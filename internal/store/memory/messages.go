package memory

import (
	"context"
	"crypto/rand"
	"slices"
	"time"

	"github.com/pinboard-go/pinboard/internal/store"
)

// message is a wind-down that waits for its worker's ack.
type message struct {
	id         string
	binding    string
	instanceID string
	revoke     bool
	until      time.Time
}

func (n *node) WindDown(ctx context.Context, binding, id string, deadline *time.Duration) error {
	now, err := n.enter(ctx)
	if err != nil {
		return err
	}
	defer n.leave()
	r := n.row(binding, id)
	if !r.alive() {
		return store.ErrNotPlaced
	}
	c := r.owner.client
	older := slices.IndexFunc(c.messages, func(m message) bool {
		return m.binding == binding && m.instanceID == id
	})
	switch {
	case older >= 0:
		c.messages = slices.Delete(c.messages, older, older+1)
	case len(c.messages) >= store.MaxMessages:
		return store.ErrQueueFull
	}
	// The id is random: an ack that is late by a whole process must not hit
	// another message.
	m := message{id: rand.Text(), binding: binding, instanceID: id, revoke: deadline == nil}
	if deadline != nil {
		m.until = now.Add(*deadline)
	}
	c.messages = append(c.messages, m)
	return nil
}

// acked drops the messages that the worker has applied.
func (c *client) acked(acks []string) {
	if len(acks) == 0 || len(c.messages) == 0 {
		return
	}
	done := make(map[string]bool, len(acks))
	for _, id := range acks {
		done[id] = true
	}
	c.messages = slices.DeleteFunc(c.messages, func(m message) bool { return done[m.id] })
}

// deliver drops the messages whose row is not the session's, which is so too
// where it does not serve the binding, and returns the others.
func (n *node) deliver(s *session, now time.Time) []store.Message {
	c := s.client
	c.messages = slices.DeleteFunc(c.messages, func(m message) bool {
		r := n.row(m.binding, m.instanceID)
		return r == nil || r.owner != s
	})
	var waiting []store.Message
	for _, m := range c.messages {
		_, namespace := store.Unbind(m.binding)
		out := store.Message{ID: m.id, Namespace: namespace, InstanceID: m.instanceID, Revoke: m.revoke}
		if !m.revoke {
			out.Left = max(0, m.until.Sub(now))
		}
		waiting = append(waiting, out)
	}
	return waiting
}
