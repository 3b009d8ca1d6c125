"""From a red test to an understood bug: the smallest input, the first wrong stage, the mistake it looks like."""
