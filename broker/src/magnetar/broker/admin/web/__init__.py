"""What all resources of the admin API share: requests, answers, rights, the API's description."""
