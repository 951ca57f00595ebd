package worker

import (
	"encoding/json"
	"maps"

	"go.uber.org/zap"
)

// Stats is what a worker tells operators about itself (protocol §3).
type Stats struct {
	// Draining: a drain of its own or an operator's is on.
	Draining bool `json:"draining"`
	// LeaseFlaps counts how often no heartbeat was accepted in time.
	LeaseFlaps int `json:"leaseFlaps"`
	// Reregistrations counts the sessions that pinboard no longer knew.
	Reregistrations int64                     `json:"reregistrations"`
	Namespaces      map[string]NamespaceStats `json:"namespaces"`
	Instances       []InstanceStats           `json:"instances"`
	Process         ProcessStats              `json:"process"`
}

// NamespaceStats counts over the life of the worker.
type NamespaceStats struct {
	Activations int64 `json:"activations"`
	// Evictions counts the ends of instances, for whatever cause.
	Evictions int64 `json:"evictions"`
}

// InstanceStats is one live instance.
type InstanceStats struct {
	Namespace string `json:"namespace"`
	ID        string `json:"id"`
	// Connections counts open streams and hijacked connections, Tasks
	// everything else that is under way: plain requests and Instance.Go.
	Connections int `json:"connections"`
	Tasks       int `json:"tasks"`
	// IdleMs is the time since something that held the instance last ended.
	IdleMs int64 `json:"idleMs"`
	// ActivatedAt is a Unix time in milliseconds.
	ActivatedAt int64 `json:"activatedAt"`
	// Own is what Instance.SetStats adds. In JSON its members stand beside the
	// others.
	Own map[string]any `json:"-"`
}

// MarshalJSON writes the instance's own figures and then those above, which win.
func (s InstanceStats) MarshalJSON() ([]byte, error) {
	type plain InstanceStats
	if len(s.Own) == 0 {
		return json.Marshal(plain(s))
	}
	members := maps.Clone(s.Own)
	text, err := json.Marshal(plain(s))
	if err == nil {
		err = json.Unmarshal(text, &members)
	}
	if err != nil {
		return nil, err
	}
	return json.Marshal(members)
}

// ProcessStats is the process as a whole.
type ProcessStats struct {
	UptimeMs int64 `json:"uptimeMs"`
	// RSSBytes is the resident memory, 0 where it is unknown, as outside of
	// Linux.
	RSSBytes int64 `json:"rssBytes,omitempty"`
	// CPUPercent is the share of one processor since the figures before, nil
	// where it is unknown: above 100 on several, and 0 the first time. Figures
	// less than 100 ms after others repeat their share.
	CPUPercent *float64 `json:"cpuPercent,omitempty"`
}

// Stats returns the current figures.
func (w *Worker) Stats() Stats {
	s := Stats{
		LeaseFlaps:      w.lease.flaps(),
		Reregistrations: w.reg.reregistrations.Load(),
		Namespaces:      map[string]NamespaceStats{},
		Process:         w.processStats(),
	}
	for _, namespace := range w.namespaces() {
		s.Namespaces[namespace] = NamespaceStats{}
	}
	for i, report := range w.dir.fill(&s) {
		s.Instances[i].Own = w.dir.ownStats(s.Instances[i], report)
	}
	return s
}

func (w *Worker) processStats() ProcessStats {
	now := w.clock().mono
	s := ProcessStats{UptimeMs: (now - w.born).Milliseconds()}
	if usage, ok := w.process.Read(now); ok {
		s.RSSBytes, s.CPUPercent = usage.ResidentBytes, &usage.CPUPercent
	}
	return s
}

// ownStats asks an instance. What JSON can't hold is left out: one instance must
// not hide all others.
func (d *directory) ownStats(of InstanceStats, report func() map[string]any) map[string]any {
	if report == nil {
		return nil
	}
	var own map[string]any
	fault := contain(func() { own = report() })
	if fault == nil {
		_, fault = json.Marshal(own)
	}
	if fault != nil {
		d.metrics.callbackFailed("SetStats")
		d.log.Error("stats of an instance failed", zap.String("instance", of.Namespace+"/"+of.ID), zap.Error(fault))
		return nil
	}
	return own
}

// fill adds the instances, and returns the reports of each.
func (d *directory) fill(s *Stats) (reports []func() map[string]any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s.Draining = d.draining()
	for namespace, counts := range d.counts {
		s.Namespaces[namespace] = *counts
	}
	now := d.clock().mono
	s.Instances = make([]InstanceStats, 0, len(d.instances))
	for _, inst := range d.instances {
		if inst.activatedAt.IsZero() {
			continue
		}
		s.Instances = append(s.Instances, InstanceStats{
			Namespace: inst.namespace, ID: inst.id,
			Connections: inst.streams, Tasks: inst.plain + inst.tasks,
			IdleMs:      (now - inst.idleSince).Milliseconds(),
			ActivatedAt: inst.activatedAt.UnixMilli(),
		})
		reports = append(reports, inst.stats)
	}
	return reports
}

// stats returns the counters of a namespace. Called with the lock held.
func (d *directory) stats(namespace string) *NamespaceStats {
	counts := d.counts[namespace]
	if counts == nil {
		counts = &NamespaceStats{}
		d.counts[namespace] = counts
	}
	return counts
}
