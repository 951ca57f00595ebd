package store

import "time"

// View is the candidates of one bucket.
type View struct {
	Version    int64
	Candidates []Candidate
}

// Row is one placement.
type Row struct {
	Hostname  string
	Namespace string
	ID        string
	SessionID string
	ClientID  string
	Epoch     int64
	PlacedAt  time.Time
	Why       Why
}

// Shard returns the shard of an id in a directory of n shards.
func Shard(id string, n int) int {
	// FNV-1a, written out: the value is part of the stored layout.
	h := uint32(2166136261)
	for i := range len(id) {
		h = (h ^ uint32(id[i])) * 16777619
	}
	return int(h % uint32(n)) // n is small and positive
}
