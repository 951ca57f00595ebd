package hop

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestABufferGrowsWithFullReadsAndShrinksWithSmallOnes(t *testing.T) {
	t.Parallel()
	b := GetBuffer(-1)
	require.Len(t, b.Space(), SmallBuffer)
	b.Took(SmallBuffer - 1)
	require.Len(t, b.Space(), SmallBuffer)
	b.Took(SmallBuffer)
	require.Len(t, b.Space(), LargeBuffer)
	b.Took(LargeBuffer)
	require.Len(t, b.Space(), LargeBuffer)
	b.Took(10)
	require.Len(t, b.Space(), SmallBuffer)
	b.Put()

	b = GetBuffer(SmallBuffer + 1)
	require.Len(t, b.Space(), LargeBuffer)
	b.Put()
}
