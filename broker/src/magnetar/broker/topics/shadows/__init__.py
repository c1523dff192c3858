"""Topics that show the entries of other topics, to subscriptions of their own."""
