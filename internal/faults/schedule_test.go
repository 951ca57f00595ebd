package faults_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/pinboard-go/pinboard/internal/faults"
)

var shape = faults.Shape{Nodes: 3, Workers: 5, Lease: 2 * time.Second}

func TestASeedRepeatsItsSchedule(t *testing.T) {
	t.Parallel()
	one := faults.Schedule(1, shape, time.Minute)
	require.NotEmpty(t, one)
	require.Equal(t, one, faults.Schedule(1, shape, time.Minute))
	require.NotEqual(t, one, faults.Schedule(2, shape, time.Minute))
	longer := faults.Schedule(1, shape, 2*time.Minute)
	require.Equal(t, one, longer[:len(one)], "a longer one begins alike")
}

// part is the first word of a fault: worker, node, redis, links.
func part(s faults.Step) string {
	word, _, _ := strings.Cut(string(s.Fault), " ")
	return strings.TrimSuffix(word, "'s")
}

func TestAScheduleHasAllFaultsAndStaysInItsShape(t *testing.T) {
	t.Parallel()
	count := map[faults.Fault]int{}
	short, long, together := 0, 0, 0
	steps := faults.Schedule(3, shape, 10*time.Minute)
	for i, s := range steps {
		count[s.Fault]++
		require.Less(t, s.Target, shape.Workers)
		require.Less(t, s.Other, shape.Nodes)
		require.Positive(t, s.Hold)
		if s.Hold < shape.Lease {
			short++
		} else {
			long++
		}
		if i > 0 {
			require.GreaterOrEqual(t, s.At, steps[i-1].At)
			if before := steps[i-1]; s.At < before.At+before.Hold {
				together++
				require.False(t, s.Target == before.Target && part(s) == part(before), "%v during %v", s, before)
			}
		}
	}
	least, most := len(steps), 0
	for _, n := range count {
		least, most = min(least, n), max(most, n)
	}
	require.Len(t, count, 26, "all kinds of faults")
	require.LessOrEqual(t, most-least, 1, "about equally often")
	require.Greater(t, short, len(steps)/4)
	require.Greater(t, long, len(steps)/4)
	require.Greater(t, together, len(steps)/4, "some at once")
}
